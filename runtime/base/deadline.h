// A point in time after which waiting is an error. It uses the steady clock, so jumps of the wall clock do not move it.
#pragma once

#include <chrono>

namespace cohort::runtime {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A deadline that never passes.
  static constexpr Deadline Infinite() { return Deadline(Clock::time_point::max()); }
  // A deadline that has already passed: it turns a wait into a look.
  static constexpr Deadline Now() { return Deadline(Clock::time_point::min()); }
  // Passes `duration` from now. A negative duration has passed already. One too long to represent gives Infinite().
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
  // The time left, never negative. It is nanoseconds::max() when infinite.
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
