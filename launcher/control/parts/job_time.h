// The rendezvous's own time. It stands still while the process is stopped, so that nobody is blamed for what was not
// heard meanwhile.
#pragma once

#include <chrono>

namespace cohort::launcher {

class JobTime {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit JobTime(TimePoint now) : now_(now), promised_(now) {}

  // The caller's clock shows `now`. True when we are called so late that this process must have been stopped.
  bool Advance(TimePoint now);
  // The rendezvous is to be called again when its own time is `due`.
  void Promise(TimePoint due) { promised_ = due + paused_; }

  // Strictly increasing with each Advance, so that times also tell the order of events.
  TimePoint now() const { return now_; }
  // By the caller's clock: when to be called again.
  TimePoint promised() const { return promised_; }

 private:
  std::chrono::nanoseconds paused_{0};  // how far this time is behind the caller's
  TimePoint now_;
  TimePoint promised_;
};

}  // namespace cohort::launcher
