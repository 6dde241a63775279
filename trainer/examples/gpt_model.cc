#include "cohort/trainer/examples/gpt_model.h"

#include <numeric>
#include <string>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using trainer::ColumnParallelLinear;
using trainer::ColumnParallelLinearOptions;
using trainer::ParallelTransformerBlockOptions;
using trainer::VocabParallelEmbedding;
using trainer::VocabParallelEmbeddingOptions;

std::vector<std::vector<int64_t>> GptSizes(const GptOptions& options) {
  const trainer::DeferredInit deferred;
  const Gpt model(options, trainer::TensorAxis(),
                  [](const std::shared_ptr<GptBlock>& block) { return std::make_pair(block, Gpt::Forward()); });
  std::vector<std::vector<int64_t>> sizes;
  for (const at::Tensor& parameter : model.parameters()) sizes.push_back(parameter.sizes().vec());
  return sizes;
}

Gpt::Gpt(const GptOptions& options, const trainer::TensorAxis& axis, const WrapBlock& wrap) : axis_(axis) {
  const int64_t width = options.width;
  tokens_ =
      register_module("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(options.vocabulary, width), axis));
  positions_ = register_module("positions", Embedding(options.context, width));
  for (int64_t i = 0; i < options.layers; ++i) {
    const ParallelTransformerBlockOptions of_block = ParallelTransformerBlockOptions(width, options.heads)
                                                         .dropout(options.dropout)
                                                         .attention_dropout(options.dropout)
                                                         .layer(static_cast<uint64_t>(i));
    auto [module, forward] = wrap(std::make_shared<GptBlock>(of_block, axis));
    register_module("block" + std::to_string(i), module);
    blocks_.push_back(forward);
  }
  norm_ = register_module("norm", LayerNorm(LayerNormOptions({width})));
  head_ = register_module("head", ColumnParallelLinear(ColumnParallelLinearOptions(width, options.vocabulary), axis));
  if (!axis.sequence_parallel()) return;
  trainer::SumGradientOver(axis, positions_->weight);
  for (const at::Tensor& parameter : norm_->parameters()) trainer::SumGradientOver(axis, parameter);
}

// The vectors of all places, or under sequence parallelism of this rank's.
at::Tensor Gpt::Positions(int64_t length) {
  int64_t begin = 0, count = length;
  if (axis_.sequence_parallel()) {
    const std::vector<int64_t> sizes = trainer::ChunkSizes(length, axis_.size());
    begin = std::accumulate(sizes.begin(), sizes.begin() + axis_.rank(), int64_t{0});
    count = sizes[axis_.rank()];
  }
  return positions_(
      torch::arange(begin, begin + count, torch::TensorOptions(torch::kInt64).device(positions_->weight.device())));
}

at::Tensor Gpt::forward(const at::Tensor& codes) {
  axis_.set_sequence_length(codes.size(1));
  at::Tensor x = tokens_(codes) + Positions(codes.size(1));
  for (const Forward& block : blocks_) x = block(x);
  return head_(norm_(x));
}

at::Tensor Gpt::Loss(const at::Tensor& logits, const at::Tensor& targets, const GptOptions& options,
                     const trainer::TensorAxis& axis) {
  return trainer::vocab_parallel_cross_entropy(
      logits, targets, axis, trainer::VocabParallelCrossEntropyOptions().num_classes(options.vocabulary));
}

}  // namespace cohort::examples
