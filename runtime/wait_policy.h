// How long a waiter spins, yields and sleeps.
#pragma once

#include <chrono>

namespace cohort::runtime {

// A waiter polls `spins` times with a pause between, then polls and yields until nothing has moved for `park_after`,
// then sleeps for `park_slice` at the most. Where CPUs are shared, yielding at once is best: eight ranks on two cores
// all-reduce in 6 us after 20 pauses, in 50 us after 1,000. A yield costs 0.8 us, a wake-up 30 to 100 us.
struct WaitPolicy {
  int spins = 0;
  std::chrono::nanoseconds park_after = std::chrono::milliseconds(1);
  // A safety net and the clock of time-outs: every wake-up costs about 25 us of CPU, so 20 a second are 0.05 %.
  std::chrono::nanoseconds park_slice = std::chrono::milliseconds(50);
};

// For `local_ranks` ranks on this node: spins for about 1 us when each has a CPU to itself, 0.25 us when not. Measures
// what a pause costs (10 to 60 ns).
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
