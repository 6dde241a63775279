// UnitGradients: the gradients of a unit's parameters through a backward pass.
//
//   Begin       the shards' .grad are put aside, so that backward accumulates whole gradients
//   Take        a whole gradient goes into the flat gradient
//   Release     the flat gradient leaves for its reduction
//   SetShards   the shards' .grad get the reduced ones
//   Restore     instead, the shards' .grad are as they were: a pass without averaging
//   Expect      the next pass expects all gradients again
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/fsdp/flat_gradient.h"
#include "cohort/trainer/parallel/fsdp/flat_parameters.h"

namespace cohort::trainer {

class UnitGradients {
 public:
  // `parameters` and `weights` outlive this. The flat gradient has type `reduce_type`. Local.
  UnitGradients(std::vector<FsdpParameter>& parameters, const FlatParameters& weights, int shards,
                at::ScalarType reduce_type);

  FlatGradient& flat() { return flat_; }
  const FlatGradient& flat() const { return flat_; }
  // Some parameters want a gradient; others don't.
  bool trainable() const { return trainable_ > 0; }
  bool frozen_in_part() const { return trainable_ < static_cast<int>(parameters_.size()); }
  // Backward has reached the unit.
  bool begun() const { return phase_ == Phase::kTaking || phase_ == Phase::kReduced; }
  // It has brought a gradient of each parameter that wants one.
  bool complete() const { return begun() && pending_ <= 0; }

  void Expect();
  void Begin();
  // Takes the gradient of parameter number `index`, times `share`. Throws c10::Error for a sparse one, and after
  // Release.
  void Take(int index, double share);
  at::Tensor Release();
  // `reduced` is this rank's shard of the flat gradient. While sharded.
  void SetShards(const at::Tensor& reduced);
  void Restore();
  // The shards have no .grad.
  void DropShards();

 private:
  // Legal transitions:
  //   Begin    kIdle -> kTaking, kDone -> kReduced
  //   Release  kTaking -> kReduced; kIdle -> kDone and kDone -> kDone on a rank without inputs
  //   Restore, SetShards  kTaking -> kIdle, kReduced -> kDone
  //   Expect   kDone -> kIdle, kIdle -> kIdle
  enum class Phase {
    kIdle,     // the shards have their .grad
    kTaking,   // it is put aside, and gradients are taken
    kReduced,  // it is put aside, and the flat gradient has left: a further gradient would come too late
    kDone,     // the shards have their .grad, and the flat gradient has left
  };
  void Become(Phase next);
  void EndTaking() { Become(phase_ == Phase::kTaking ? Phase::kIdle : Phase::kDone); }

  std::vector<FsdpParameter>& parameters_;
  const FlatParameters& weights_;
  FlatGradient flat_;
  Phase phase_ = Phase::kIdle;
  std::vector<at::Tensor> saved_;  // by parameter: the shard's .grad, put aside
  std::vector<bool> seen_;         // by parameter: had a gradient in this backward pass
  int trainable_ = 0;
  int pending_ = 0;  // trainable ones that had none
};

}  // namespace cohort::trainer
