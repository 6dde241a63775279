// UnitRuns: when a unit ran forward, so that backward knows which units it is through with.
#pragma once

#include <cstdint>
#include <utility>

namespace cohort::trainer {

// Times are counted up by the caller. A second backward pass through the same graph has as many runs as the first.
class UnitRuns {
 public:
  void Begin(int64_t now) {
    ++last_.count;
    last_.began = now;
  }
  void End(int64_t now) { last_.ended = now; }
  // Keep comes before a forward pass. Restore gives that pass up: its runs are forgotten.
  void Keep() { kept_ = last_; }
  void Restore() { last_ = kept_; }
  void Forget() { last_.count = in_backward_ = 0; }
  // A backward pass begins: it goes through the runs since the one before.
  void TakeForBackward() { in_backward_ = last_.count > 0 ? std::exchange(last_.count, 0) : in_backward_; }

  // All runs had ended when `other` began its last one: backward comes to this unit when it is through with `other`.
  bool ended_before(const UnitRuns& other) const { return last_.ended < other.last_.began; }
  // This backward pass goes through more than one run. Parameters may then get a gradient from each: where the type
  // changes, or a checkpoint computes again, each run has an accumulator or a pass of its own. Nobody can tell which
  // gradient is the last before the pass ends.
  bool repeated() const { return in_backward_ > 1; }

 private:
  struct Runs {
    int count = 0;                 // since the last backward pass began
    int64_t began = 0, ended = 0;  // the last one
  };
  Runs last_, kept_;
  int in_backward_ = 0;
};

}  // namespace cohort::trainer
