// RowParallelLinear: a linear layer whose input features are cut over a TensorAxis, after Megatron-LM.
//
//   y = x A^T + b, [out, in] weight:   rank 0 │ rank 1    the rows of A^T are columns of the weight
//
// Input: this rank's features, as ColumnParallelLinear leaves them. Output: the sum over the ranks, whole on each, or
// with sequence parallelism its part of the sequence. The bias is added once, after the sum; every rank has it.
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cohort::trainer {

struct RowParallelLinearOptions {
  RowParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  TORCH_ARG(int64_t, in_features);  // of the unsplit layer; they need not divide by the ranks
  TORCH_ARG(int64_t, out_features);
  TORCH_ARG(bool, bias) = true;
  // False: the input has all features, and the layer takes this rank's. Not possible with units or under sequence
  // parallelism.
  TORCH_ARG(bool, input_is_parallel) = true;
  // Features that stay together on a rank: the size of an attention head.
  TORCH_ARG(int64_t, unit) = 1;
};

class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>, public nn::AdaptableLayer {
 public:
  // Weights start as torch's Linear's and biases at zero, as one process would draw them if all ranks have the same
  // torch::manual_seed. Local. Throws c10::Error for sizes that do not fit.
  RowParallelLinearImpl(RowParallelLinearOptions options, TensorAxis axis);
  void reset() override;
  void reset_parameters();
  // [..., this rank's features] -> [..., out]. Collective over the axis, as is backward; blocks. Throws
  // DistributedError and c10::Error.
  at::Tensor forward(const at::Tensor& x);

  nn::LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) override;
  std::optional<ActivationPart> input_part(const at::Tensor& x) const override;

  RowParallelLinearOptions options;
  TensorAxis axis;
  at::Tensor weight;  // [out, this rank's features]
  at::Tensor bias;    // [out], or undefined
};
TORCH_MODULE(RowParallelLinear);

}  // namespace cohort::trainer
