// The clock of benchmarks: the time-stamp counter (10 ns a reading here) or, where there is none, the steady clock.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cohort::measure {

inline uint64_t Ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Measured once per process, over 20 ms.
inline double NanosecondsPerTick() {
  static const double value = [] {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    const uint64_t first = Ticks();
    while (Clock::now() - begin < std::chrono::milliseconds(20)) {
    }
    const uint64_t last = Ticks();
    const std::chrono::nanoseconds passed = Clock::now() - begin;
    return static_cast<double>(passed.count()) / static_cast<double>(last - first);
  }();
  return value;
}

}  // namespace cohort::measure
