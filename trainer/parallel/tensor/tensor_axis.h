// TensorAxis: the ranks among which the matrices of a layer are cut, and how layers use them.
//
//   TensorAxis axis(*mesh->axis("tensor"), {.sequence_parallel = true, .chunks = 4});
//   auto up = ColumnParallelLinear(ColumnParallelLinearOptions(1024, 4096), axis);
//
// Tensor parallelism: Shoeybi et al., "Megatron-LM" (2019). Sequence parallelism: Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models" (2022).
//
//   without sequence parallelism    x whole ─► column ─► part of the features ─► row ─► all-reduce ─► y whole
//   with it                         part of x ─► all-gather ─► column ─► row ─► reduce-scatter ─► part of y
//
// Both send the same bytes. With sequence parallelism, norms and dropout between the layers work on a part of the
// sequence, which saves their activations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/mesh/axis.h"

namespace cohort::trainer {

struct TensorAxisOptions {
  // Between the layers each rank has a part of the sequence instead of all of it.
  bool sequence_parallel = false;
  // The dimension of activations that counts the sequence: 0 for [sequence, batch, features] as in Megatron, 1 for
  // [batch, sequence, features]. It is cut as torch.chunk does. Used by sequence parallelism only.
  int64_t sequence_dim = 0;
  // Pieces into which layers cut their collectives, so that each moves while the product of another is computed. It
  // needs RuntimeOptions::progress_thread. 1: collectives and products take turns.
  int chunks = 1;
};

// A small value; copies refer to the same axis.
class TensorAxis {
 public:
  // An axis of this rank alone, without sequence parallelism: layers are then ordinary ones.
  TensorAxis();
  // The axis's group must outlive the layers. Without a group of several ranks layers can be made, for a dry run, but
  // not run. Throws c10::Error for options out of range.
  explicit TensorAxis(Axis axis, TensorAxisOptions options = {});
  // An axis named "tensor" of all ranks of `group`.
  explicit TensorAxis(comm::Communicator& group, TensorAxisOptions options = {});

  const Axis& axis() const { return axis_; }
  // Throws c10::Error for an axis without a group.
  comm::Communicator& group() const {
    TORCH_CHECK(axis_.group != nullptr, "TensorAxis: axis '", axis_.name,
                "' has no communicator: its layers were made for a dry run");
    return *axis_.group;
  }
  int rank() const { return axis_.rank; }
  int size() const { return axis_.size; }
  const TensorAxisOptions& options() const { return options_; }
  // As the options say, on an axis of one rank too: a model's activations have one layout on any mesh, and the part of
  // the only rank is all of the sequence.
  bool sequence_parallel() const { return options_.sequence_parallel; }

  // The dimension of activations that counts the batch: the second one if sequences come first, otherwise the first.
  int64_t batch_dim() const { return sequence_parallel() && options_.sequence_dim == 0 ? 1 : 0; }

  // Returns a parameter that every rank of the axis has, for use where each rank makes a part of its gradient: the
  // gradient is summed over the axis. Under sequence parallelism alone; otherwise it is the parameter itself.
  at::Tensor SharedParameter(const at::Tensor& parameter) const;

  // Sets the length of the whole sequence for all copies of this axis. Needed where it is no multiple of size(): a part
  // does not say how long the others are. The model's forward sets it, and 0 means that all parts are equal.
  void set_sequence_length(int64_t length) const { *sequence_length_ = length; }
  // Returns the whole sequence's length, where this rank has `part` of it. Throws c10::Error if `part` is no part of
  // the length that was set.
  int64_t sequence_length(int64_t part) const;
  // Returns how an activation between the layers lies in the whole: cut along the sequence or not at all.
  ActivationPart SequencePart(const at::Tensor& x, int64_t batch_dim) const;

 private:
  Axis axis_;
  TensorAxisOptions options_;
  std::shared_ptr<int64_t> sequence_length_;
};

}  // namespace cohort::trainer
