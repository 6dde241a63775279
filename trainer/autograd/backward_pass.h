// One backward pass, from within: whoever takes part in it learns when it has ended, also where an exception ended it.
// The engine calls back at the end of a pass that succeeds, and says nothing of one that does not.
#pragma once

#include <functional>
#include <memory>

namespace cohort::trainer {

// Not thread-safe: its owner holds a lock, as for all that autograd's hooks change.
class BackwardPass {
 public:
  // From a hook: of the pass that runs on this thread. `at_end` is called when it has computed all gradients, on a
  // thread of the engine or the one that called backward(), and not where an exception ends it.
  void Begin(std::function<void()> at_end);
  // Takes it for over, as `at_end` may: until that has returned the pass still goes on.
  void End() { alive_.reset(); }
  // Whether the pass last begun is still going on. Not once an exception of it has left backward(), but for a moment on
  // a GPU: its engine threads let go of the pass after the caller has been told.
  bool goes_on() const { return !alive_.expired(); }
  // The same from where passes may be within each other: never where this thread runs none, also just after an
  // exception.
  bool goes_on_here() const;

 private:
  std::weak_ptr<void> alive_;  // held by the engine, for as long as it holds the pass
};

}  // namespace cohort::trainer
