// BackwardCycle: the backward pass of a model under way, or the last one that an exception has ended.
#pragma once

#include <functional>
#include <utility>

#include "c10/util/Exception.h"
#include "cohort/trainer/autograd/backward_pass.h"

namespace cohort::trainer {

// Not thread-safe: FsdpRoot holds its lock.
class BackwardCycle {
 public:
  // Legal transitions: Begin kNone -> kAlone, kShared; End from all of them to kNone.
  enum class State {
    kNone,    // there is no pass, or the last one has ended in order
    kAlone,   // a pass has begun that sends nothing: its exception concerns this rank alone
    kShared,  // a pass has begun whose collectives the other ranks take part in
  };

  // From a hook of the pass. `at_end` as BackwardPass::Begin's.
  void Begin(State state, std::function<void()> at_end) {
    TORCH_INTERNAL_ASSERT(state_ == State::kNone && state != State::kNone, "a backward pass begins within another");
    state_ = state;
    pass_.Begin(std::move(at_end));
  }
  // The pass has ended in order, or its failure has been dealt with.
  void End() { state_ = State::kNone; }

  // Begin without End. Unless the pass goes on, an exception has ended it.
  bool begun() const { return state_ != State::kNone; }
  bool concerns_others() const { return state_ == State::kShared; }
  bool goes_on() const { return begun() && pass_.goes_on(); }
  bool goes_on_here() const { return begun() && pass_.goes_on_here(); }

 private:
  State state_ = State::kNone;
  BackwardPass pass_;
};

}  // namespace cohort::trainer
