// FastClock: steady-clock time at the price of one time-stamp counter read (10 ns rather than 29 ns here).
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace cohort::runtime {

// Steady-clock time in nanoseconds, comparable between the processes of a host.
inline uint64_t SteadyNow() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Agrees with SteadyNow() within a few microseconds: the counter's rate is measured against the steady clock, and the
// two are set equal again every second. Uses the steady clock itself where there is no invariant counter. Used by one
// thread at a time.
class FastClock {
 public:
  FastClock() { Anchor(); }

  uint64_t Now() {
#if defined(__x86_64__)
    const uint64_t ticks = __rdtsc() - anchor_ticks_;
    // An unsigned difference: a counter that ran backwards looks too old as well, and the clock is anchored again.
    if (ticks < valid_ticks_) [[likely]]
      return Extrapolated(ticks);
    return AnchorAgain();
#else
    return SteadyNow();
#endif
  }

  // As Now, but never slow: 0 when the clock must be set again, which Now does.
  uint64_t NowIfSet() const {
#if defined(__x86_64__)
    const uint64_t ticks = __rdtsc() - anchor_ticks_;
    return ticks < valid_ticks_ ? Extrapolated(ticks) : 0;
#else
    return SteadyNow();
#endif
  }

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kMeasureNs = 2'000'000;  // shorter spans give no useful rate
  static constexpr uint64_t kAnchorEveryNs = 1'000'000'000;

  static bool InvariantCounter() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
  }
  void Anchor() {
    usable_ = InvariantCounter();
    anchor_ns_ = SteadyNow();
    anchor_ticks_ = __rdtsc();
  }
  // Signed: conversions of unsigned numbers take ten instructions more.
  uint64_t Extrapolated(uint64_t ticks) const {
    return anchor_ns_ +
           static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(ticks)) * ns_per_tick_));
  }
  [[gnu::noinline]] uint64_t AnchorAgain() {
    const uint64_t now = SteadyNow();
    if (!usable_) return now;
    const uint64_t counter = __rdtsc();
    if (now - anchor_ns_ < kMeasureNs) return now;
    const uint64_t ticks = counter - anchor_ticks_;
    const double rate = ticks == 0 ? 0 : static_cast<double>(now - anchor_ns_) / static_cast<double>(ticks);
    anchor_ns_ = now;
    anchor_ticks_ = counter;
    // Between 0.1 and 10 GHz; anything else is no clock.
    const bool sane = rate > 0.1 && rate < 10;
    ns_per_tick_ = rate;
    valid_ticks_ = sane ? static_cast<uint64_t>(static_cast<double>(kAnchorEveryNs) / rate) : 0;
    return now;
  }

  uint64_t anchor_ns_ = 0;
  uint64_t anchor_ticks_ = 0;
  uint64_t valid_ticks_ = 0;  // 0 until the rate is known
  double ns_per_tick_ = 0;
  bool usable_ = false;
#else
  void Anchor() {}
#endif
};

}  // namespace cohort::runtime
