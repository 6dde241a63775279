// UnitRuns: when a unit ran. UnitOrder: the order in which units run forward, and what follows from it for gathering
// ahead and for reductions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/transfer/collectives.h"

namespace cohort::trainer {

// When a unit ran forward, so that backward knows which units it is through with. Times are counted up by the caller. A
// second backward pass through the same graph has as many runs as the first.
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

// Units are reduced in the opposite order of their forward passes, also when a later one has its gradients first. So
// the order of calls is the same on all ranks, whatever their graphs look like.
class UnitOrder {
 public:
  // The unit's forward pass begins.
  void Add(FsdpUnit& unit) { order_.push_back(&unit); }
  // The iteration is over: its order becomes the last one, if any unit ran.
  void Close();
  // The forward pass is given up.
  void Abandon() { order_.clear(); }
  // Nothing is known of any pass.
  void Forget();

  // The unit that ran after `unit` in the last iteration, if `unit`, whose pass begins, stood at the same place there;
  // else null.
  FsdpUnit* NextForward(const FsdpUnit& unit) const;
  // The unit whose forward pass came before that of `unit`. After the root's own part, which has its parameters, it is
  // the last one. Null for none.
  FsdpUnit* NextBackward(const FsdpUnit& unit) const;
  // The order of reductions. Units that ran more than once come last, where they hold nobody up. Units that only
  // earlier forward passes had follow them.
  std::vector<FsdpUnit*> ForReductions(const std::vector<std::shared_ptr<FsdpUnit>>& all) const;

 private:
  std::vector<FsdpUnit*> order_;  // in this iteration's forward pass
  std::vector<FsdpUnit*> last_;   // and in the one before
};

// Tags of a unit's collectives, so that they meet those of the same unit in the same iteration only. Units may be of
// equal size, and a rank may run them in another order or miss a backward pass.
//
// Gatherings count every forward pass, which the ranks of the shards make alike. Reductions count only those whose
// gradients are averaged: one replica may evaluate alone, or accumulate another number of passes.
class UnitTags {
 public:
  // The model begins a forward pass, or other ranks do. It `averages` if a backward pass is to average its gradients.
  void BeginForward(bool averages) {
    ++forward_passes_;
    if (averages) ++averages_;
  }
  // Gradients are averaged that no forward pass has announced: those of a pipeline's step.
  void BeginAverage() { ++averages_; }
  uint64_t OfGathering(const FsdpUnit& unit) const { return CallTag(forward_passes_, unit.number()); }
  uint64_t OfReduction(const FsdpUnit& unit) const { return CallTag(averages_, unit.number()); }

 private:
  uint64_t forward_passes_ = 0;
  uint64_t averages_ = 0;
};

}  // namespace cohort::trainer
