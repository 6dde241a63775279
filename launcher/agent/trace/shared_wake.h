// Timers that share the loop's wakes: each wake keeps a rank from its CPU, and the ranks that call with it wait.
#pragma once

#include <chrono>

namespace cohort::launcher {

// The time from `now` to the next multiple of `period` by the steady clock; never zero. Timers of one period that begin
// so expire together.
constexpr std::chrono::nanoseconds UntilSharedWake(std::chrono::steady_clock::time_point now,
                                                   std::chrono::nanoseconds period) {
  return period - now.time_since_epoch() % period;
}

}  // namespace cohort::launcher
