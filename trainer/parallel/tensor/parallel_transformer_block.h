// ParallelTransformerBlock: a pre-norm transformer block cut over a TensorAxis, after Megatron-LM. Attention heads and
// the hidden features of the network are cut; norms are whole.
//
//   x ─► norm1 ─► qkv (columns, by head) ─► attention of own heads ─► out (rows) ─► dropout ─► + x
//     ─► norm2 ─► up (columns) ─► GELU ─► down (rows) ─► dropout ─► + that
//
// On an axis of one rank it is an ordinary block. Parameters have the same names, and whole sizes, on any axis.
#pragma once

#include <cstdint>

#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/parallel_dropout.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cohort::trainer {

struct ParallelTransformerBlockOptions {
  ParallelTransformerBlockOptions(int64_t width, int64_t heads) : width_(width), heads_(heads), hidden_(4 * width) {}
  TORCH_ARG(int64_t, width);  // features, a multiple of heads
  TORCH_ARG(int64_t, heads);  // they need not divide by the ranks; a rank may have none
  TORCH_ARG(int64_t, hidden);
  TORCH_ARG(bool, causal) = true;
  TORCH_ARG(double, dropout) = 0.0;            // of both branches
  TORCH_ARG(double, attention_dropout) = 0.0;  // of attention weights
  TORCH_ARG(uint64_t, layer) = 0;              // its number in the model, for dropout
};

class ParallelTransformerBlockImpl : public torch::nn::Module {
 public:
  // Local. Throws c10::Error for sizes that do not fit.
  ParallelTransformerBlockImpl(ParallelTransformerBlockOptions options, TensorAxis axis);
  // [batch, sequence, width], or [sequence, batch, width] if TensorAxisOptions::sequence_dim is 0 and sequence
  // parallelism is on. Whole on every rank, or with sequence parallelism its part of the sequence. Returns the same
  // shape. Collective over the axis, as is backward; blocks. Throws DistributedError and c10::Error.
  at::Tensor forward(const at::Tensor& x);

  ParallelTransformerBlockOptions options;
  TensorAxis axis;

 private:
  at::Tensor Attend(const at::Tensor& x);
  at::Tensor Weights(const at::Tensor& scores);

  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  ColumnParallelLinear qkv_{nullptr}, up_{nullptr};
  RowParallelLinear out_{nullptr}, down_{nullptr};
  ParallelDropout dropout1_{nullptr}, dropout2_{nullptr}, attention_dropout_{nullptr};
  int64_t first_head_ = 0;  // of this rank
};
TORCH_MODULE(ParallelTransformerBlock);

}  // namespace cohort::trainer
