// How long a waiter spins, yields and sleeps.
#pragma once

#include <chrono>
#include <cstdint>

namespace cohort::runtime {

// A waiter polls `spins` times with a pause between, then polls and yields until nothing has moved for `park_after`.
// Then it sleeps for `park_slice` at the most. If CPUs are shared, yielding at once is best: the rank that it waits for
// may need this CPU. Four ranks on two cores then all-reduce in 2.6 to 4.5 us. Ranks that poll for 0.25 us first take
// 4.2 to 8.5 us. Eight ranks take 6 to 16 us rather than 10 to 25. A yield costs 0.8 us, a wake-up 30 to 100 us.
struct WaitPolicy {
  int spins = 0;
  // Yields between two readings of the clock, for park_after and the deadline.
  uint32_t yields_per_clock = 1;
  std::chrono::nanoseconds park_after = std::chrono::milliseconds(1);
  // A safety net and the clock of time-outs: every wake-up costs about 25 us of CPU, so 20 a second are 0.05 %.
  std::chrono::nanoseconds park_slice = std::chrono::milliseconds(50);
};

// For `local_ranks` ranks on this node: spins for about 1 us when each has a CPU to itself, not at all when they share
// CPUs. Measures what a pause costs (10 to 60 ns).
WaitPolicy MakeWaitPolicy(int local_ranks);

// One pause: tells the CPU that this is a spin loop.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waiting for another thread that holds the engine for a moment: spins, then yields, then naps.
class Backoff {
 public:
  void Wait();

 private:
  int rounds_ = 0;
};

}  // namespace cohort::runtime
