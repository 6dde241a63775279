// A state that changes along legal transitions alone.
#pragma once

#include "cohort/runtime/base/check.h"

namespace cohort::runtime {

// State is an enum. MayFollow(State from, State to) beside it says which transitions are legal; any other one ends the
// process, since it is a mistake of our own.
template <typename State>
class CheckedState {
 public:
  explicit CheckedState(State first) : now_(first) {}

  void Enter(State next) {
    COHORT_CHECK(MayFollow(now_, next));
    now_ = next;
  }
  operator State() const { return now_; }  // NOLINT(google-explicit-constructor)

 private:
  State now_;
};

}  // namespace cohort::runtime
