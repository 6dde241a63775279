// ColumnParallelLinear: a linear layer whose output features are cut over a TensorAxis, after Megatron-LM.
//
//   y = x A^T + b, [out, in] weight:   rank 0 ┌──────┐   the columns of A^T are rows of the weight
//                                      rank 1 └──────┘
//
// Input: whole on every rank (with sequence parallelism: this rank's part of the sequence). Output: this rank's
// features for the whole sequence, which RowParallelLinear takes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cohort::trainer {

struct ColumnParallelLinearOptions {
  ColumnParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  TORCH_ARG(int64_t, in_features);
  TORCH_ARG(int64_t, out_features);  // of the unsplit layer; they need not divide by the ranks
  TORCH_ARG(bool, bias) = true;
  // Every rank gets all features. Not possible with blocks or units.
  TORCH_ARG(bool, gather_output) = false;
  // Lengths of fused parts, which are cut one by one: {w, w, w} for query, key and value, {h, h} for gate and up. They
  // add up to out_features. Empty: one part.
  TORCH_ARG(std::vector<int64_t>, blocks) = {};
  // Features that stay together on a rank: the size of an attention head.
  TORCH_ARG(int64_t, unit) = 1;
};

class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>, public nn::AdaptableLayer {
 public:
  // Weights start as torch's Linear's and biases at zero, as one process would draw them if all ranks have the same
  // torch::manual_seed. Local. Throws c10::Error for sizes and blocks that do not fit.
  ColumnParallelLinearImpl(ColumnParallelLinearOptions options, TensorAxis axis);
  void reset() override;
  void reset_parameters();
  // [..., in] -> [..., this rank's features], or [..., out] with gather_output. Collective over the axis, as is
  // backward; blocks. Throws DistributedError and c10::Error.
  at::Tensor forward(const at::Tensor& x);

  nn::LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) override;
  std::optional<ActivationPart> input_part(const at::Tensor& x) const override;

  ColumnParallelLinearOptions options;
  TensorAxis axis;
  at::Tensor weight;  // [this rank's features, in]
  at::Tensor bias;    // [this rank's features], or undefined
};
TORCH_MODULE(ColumnParallelLinear);

// The layer of tutorials on tensor parallelism: each rank computes some output features and all of them are gathered.
// Here the gathering has a gradient, which torch.distributed.all_gather has not: without it only the rank's own loss
// reaches its weights, or none at all.
class TensorParallelLinearImpl : public ColumnParallelLinearImpl {
 public:
  TensorParallelLinearImpl(int64_t in_features, int64_t out_features, TensorAxis axis)
      : ColumnParallelLinearImpl(ColumnParallelLinearOptions(in_features, out_features).gather_output(true),
                                 std::move(axis)) {}
};
TORCH_MODULE(TensorParallelLinear);

}  // namespace cohort::trainer
