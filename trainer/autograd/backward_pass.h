// Follows one backward pass from within: a participant learns that the pass has ended, also when an exception ended it.
// The engine itself calls back only at the end of a pass that succeeds.
#pragma once

#include <functional>
#include <memory>

namespace cohort::trainer {

// Not thread-safe: its owner holds a lock, as for all state that autograd's hooks change.
class BackwardPass {
 public:
  // Follows the pass that runs on this thread; called from a hook. `at_end` is called when the pass has computed all
  // gradients. It runs on a thread of the engine or on the one that called backward(). It is not called when an
  // exception ends the pass.
  void Begin(std::function<void()> at_end);
  // Treats the pass as over; `at_end` may call it. The pass itself goes on until `at_end` has returned.
  void End() { alive_.reset(); }
  // Whether the pass last begun still goes on. It is false once the pass' exception has left backward(). On a GPU it
  // may stay true for a moment longer: the engine's threads let go of the pass after the caller has returned.
  bool goes_on() const { return !alive_.expired(); }
  // As goes_on(), for threads on which passes may nest. It is false if this thread runs no pass, also just after an
  // exception.
  bool goes_on_here() const;

 private:
  std::weak_ptr<void> alive_;  // held by the engine, for as long as it holds the pass
};

}  // namespace cohort::trainer
