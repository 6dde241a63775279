// A point in time after which waiting is an error. Steady clock: no jump of the wall clock moves it.
#pragma once

#include <chrono>

namespace cohort::runtime {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Never passes.
  static constexpr Deadline Infinite() { return Deadline(Clock::time_point::max()); }
  // Already passed: turns a wait into a look.
  static constexpr Deadline Now() { return Deadline(Clock::time_point::min()); }
  // Passes `duration` from now, at once where that is negative; durations too long to be represented give Infinite().
  static Deadline After(std::chrono::nanoseconds duration) {
    const Clock::time_point now = Clock::now();
    if (duration < std::chrono::nanoseconds(0)) return Deadline(now);
    if (duration > Clock::time_point::max() - now) return Infinite();
    return Deadline(now + duration);
  }
  explicit constexpr Deadline(Clock::time_point time) : time_(time) {}

  constexpr Clock::time_point time() const { return time_; }
  constexpr bool infinite() const { return time_ == Clock::time_point::max(); }
  bool passed() const { return !infinite() && Clock::now() >= time_; }
  // Time left, never negative; nanoseconds::max() when infinite.
  std::chrono::nanoseconds left() const {
    if (infinite()) return std::chrono::nanoseconds::max();
    if (time_ == Clock::time_point::min()) return std::chrono::nanoseconds(0);
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(time_ - Clock::now());
    return left < std::chrono::nanoseconds(0) ? std::chrono::nanoseconds(0) : left;
  }
  friend constexpr Deadline Earlier(Deadline a, Deadline b) { return a.time_ < b.time_ ? a : b; }

 private:
  Clock::time_point time_;
};

}  // namespace cohort::runtime
