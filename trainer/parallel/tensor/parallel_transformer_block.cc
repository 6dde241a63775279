#include "cohort/trainer/parallel/tensor/parallel_transformer_block.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer {

using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;

ParallelTransformerBlockImpl::ParallelTransformerBlockImpl(ParallelTransformerBlockOptions options_in,
                                                           TensorAxis axis_in)
    : options(std::move(options_in)), axis(std::move(axis_in)) {
  const int64_t width = options.width(), heads = options.heads();
  TORCH_CHECK(heads > 0 && width % heads == 0, "a width of ", width, " can't be split into ", heads, " heads");
  const int64_t head = width / heads;
  norm1_ = register_module("norm1", LayerNorm(LayerNormOptions({width})));
  qkv_ = register_module(
      "qkv", ColumnParallelLinear(
                 ColumnParallelLinearOptions(width, 3 * width).blocks({width, width, width}).unit(head), axis));
  out_ = register_module("out", RowParallelLinear(RowParallelLinearOptions(width, width).unit(head), axis));
  norm2_ = register_module("norm2", LayerNorm(LayerNormOptions({width})));
  up_ = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(width, options.hidden()), axis));
  down_ = register_module("down", RowParallelLinear(RowParallelLinearOptions(options.hidden(), width), axis));
  // Three masks a block: each needs a number of its own.
  const int64_t batch_dim = axis.batch_dim();
  const auto dropout = [&](double p, uint64_t mask, int64_t batch) {
    return ParallelDropout(ParallelDropoutOptions(p).layer(3 * options.layer() + mask).batch_dim(batch), axis);
  };
  dropout1_ = register_module("dropout1", dropout(options.dropout(), 0, batch_dim));
  dropout2_ = register_module("dropout2", dropout(options.dropout(), 1, batch_dim));
  attention_dropout_ = register_module("attention_dropout", dropout(options.attention_dropout(), 2, 0));
  const std::vector<int64_t> by_rank = ChunkSizes(heads, axis.size());
  for (int rank = 0; rank < axis.rank(); ++rank) first_head_ += by_rank[rank];
  if (!axis.sequence_parallel()) return;
  for (const at::Tensor& parameter : norm1_->parameters()) SumGradientOver(axis, parameter);
  for (const at::Tensor& parameter : norm2_->parameters()) SumGradientOver(axis, parameter);
}

at::Tensor ParallelTransformerBlockImpl::Weights(const at::Tensor& scores) {
  at::Tensor masked = scores;
  if (options.causal()) {
    const int64_t length = scores.size(-1);
    const at::Tensor future = torch::ones({length, length}, torch::kBool).triu(1).to(scores.device());
    masked = scores.masked_fill(future, -std::numeric_limits<float>::infinity());
  }
  return attention_dropout_->forward_part(
      torch::softmax(masked, /*dim=*/-1),
      {.batch_dim = 0, .cut_dim = 1, .begin = first_head_, .whole = options.heads()});
}

at::Tensor ParallelTransformerBlockImpl::Attend(const at::Tensor& x) {
  const bool sequence_first = axis.sequence_parallel() && axis.options().sequence_dim == 0;
  at::Tensor fused = qkv_(x);  // the whole sequence, own heads
  if (sequence_first) fused = fused.transpose(0, 1);
  const int64_t batch = fused.size(0), length = fused.size(1), head = options.width() / options.heads();
  const int64_t heads = fused.size(2) / (3 * head);
  const auto parts = fused.reshape({batch, length, 3, heads, head}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(head));
  const at::Tensor attended = torch::matmul(Weights(scores), parts[2]);  // [batch, heads, length, head]
  return out_(sequence_first ? attended.permute({2, 0, 1, 3}).reshape({length, batch, heads * head})
                             : attended.transpose(1, 2).reshape({batch, length, heads * head}));
}

at::Tensor ParallelTransformerBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + dropout1_(Attend(norm1_(x)));
  return y + dropout2_(down_(torch::gelu(up_(norm2_(y)))));
}

}  // namespace cohort::trainer
