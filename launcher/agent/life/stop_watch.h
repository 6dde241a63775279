// Whether a rank is stopped, for how long, and what the user has been told of it.
#pragma once

#include <chrono>

namespace cohort::launcher {

class StopWatch {
 public:
  using Clock = std::chrono::steady_clock;

  enum class State {
    kGoes,
    kStopped,  // by a signal
    kHeld,     // by a debugger, which may let it go on at any time
  };

  // Takes a look's result. A process that is in the state of the look before has been so all the time.
  void See(State state, Clock::time_point now) {
    if (state == state_) return;
    state_ = state;
    since_ = now;
  }
  // A stopped process that stops has gone on in between.
  void Restart() { state_ = State::kGoes; }
  // The time does not count: the process that looks was stopped itself.
  void Forgive(Clock::duration time) { since_ += time; }

  State state() const { return state_; }
  Clock::duration lasts(Clock::time_point now) const {
    return state_ == State::kGoes ? Clock::duration(0) : now - since_;
  }

  // True once for each state that has lasted so long that the user should know. kGoes: after another was told.
  bool MustTell(Clock::time_point now) {
    if (state_ == told_ || (state_ != State::kGoes && lasts(now) < kTellAfter)) return false;
    told_ = state_;
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kTellAfter{500};  // shorter stops are nobody's concern

  State state_ = State::kGoes;
  State told_ = State::kGoes;
  Clock::time_point since_{};
};

}  // namespace cohort::launcher
