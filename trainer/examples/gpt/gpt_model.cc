#include "cohort/trainer/examples/gpt/gpt_model.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
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

void GptHead::Tie(const at::Tensor& shared) {
  parameters_.erase("weight");
  weight = shared;
}

void GptHead::Untie() {
  const trainer::Placement placement = *trainer::Placements().OrWhole(weight);
  weight = register_parameter("weight", weight.detach().clone(), weight.requires_grad());
  trainer::Placements().Add(weight, placement);
}

void Gpt::AddBlock(int64_t number, const std::shared_ptr<GptBlock>& block, const WrapBlock& wrap) {
  auto [module, forward] = wrap(block);
  register_module("block" + std::to_string(number), module);
  unwrapped_.push_back(block);
  blocks_.push_back(forward);
}

Gpt::Gpt(const GptOptions& options, const trainer::TensorAxis& axis, const WrapBlock& wrap)
    : axis_(axis), autocast_(options.autocast) {
  const int64_t width = options.width;
  tokens_ =
      register_module("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(options.vocabulary, width), axis));
  positions_ = register_module("positions", Embedding(options.context, width));
  for (int64_t i = 0; i < options.layers; ++i) {
    const ParallelTransformerBlockOptions of_block = ParallelTransformerBlockOptions(width, options.heads)
                                                         .dropout(options.dropout)
                                                         .attention_dropout(options.dropout)
                                                         .layer(static_cast<uint64_t>(i));
    AddBlock(i, std::make_shared<GptBlock>(of_block, axis), wrap);
  }
  norm_ = register_module("norm", LayerNorm(LayerNormOptions({width})));
  head_ =
      register_module("head", std::make_shared<GptHead>(ColumnParallelLinearOptions(width, options.vocabulary), axis));
  if (options.tied) head_->Tie(tokens_->weight);
  if (!axis.sequence_parallel()) return;
  trainer::SumGradientOver(axis, positions_->weight);
  for (const at::Tensor& parameter : norm_->parameters()) trainer::SumGradientOver(axis, parameter);
}

Gpt::Gpt(const Gpt& whole, const GptPart& part, const WrapBlock& wrap)
    : axis_(whole.axis_), autocast_(whole.autocast_) {
  const int head = static_cast<int>(whole.unwrapped_.size()) + 1;
  if (part.begin == 0) {
    tokens_ = register_module("tokens", whole.tokens_);
    positions_ = register_module("positions", whole.positions_);
  }
  for (int layer = std::max(part.begin, 1); layer < std::min(part.end, head); ++layer) {
    AddBlock(layer - 1, whole.unwrapped_[static_cast<size_t>(layer - 1)], wrap);
  }
  if (part.end <= head) return;
  norm_ = register_module("norm", whole.norm_);
  head_ = register_module("head", whole.head_);
  if (part.begin > 0 && head_->weight.is_same(whole.tokens_->weight)) head_->Untie();
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

at::Tensor Gpt::forward(const at::Tensor& x) {
  if (!autocast_) return Compute(x);
  const trainer::Autocast autocast(x.device().type(), at::kBFloat16);
  return Compute(x);
}

at::Tensor Gpt::Compute(const at::Tensor& x) {
  at::Tensor y = x;
  if (!tokens_.is_empty()) {
    axis_.set_sequence_length(x.size(1));
    y = tokens_(x) + Positions(x.size(1));
  }
  for (const Forward& block : blocks_) y = block(y);
  return head_ == nullptr ? y : head_->forward(norm_(y));
}

at::Tensor Gpt::Loss(const at::Tensor& logits, const at::Tensor& targets, const GptOptions& options,
                     const trainer::TensorAxis& axis) {
  return trainer::vocab_parallel_cross_entropy(
      logits.to(at::kFloat), targets, axis,
      trainer::VocabParallelCrossEntropyOptions().num_classes(options.vocabulary));
}

}  // namespace cohort::examples
