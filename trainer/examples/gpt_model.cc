#include "cohort/trainer/examples/gpt_model.h"

#include <cmath>
#include <limits>
#include <string>

#include "cohort/trainer/state/deferred_init.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

std::vector<std::vector<int64_t>> GptSizes(const GptOptions& options) {
  const trainer::DeferredInit deferred;
  const Gpt model(options,
                  [](const std::shared_ptr<GptBlock>& block) { return std::make_pair(block, Gpt::Forward()); });
  std::vector<std::vector<int64_t>> sizes;
  for (const at::Tensor& parameter : model.parameters()) sizes.push_back(parameter.sizes().vec());
  return sizes;
}

GptBlock::GptBlock(const GptOptions& options) : heads_(options.heads) {
  TORCH_CHECK(options.width % options.heads == 0, "a width of ", options.width, " can't be split into ", options.heads,
              " heads");
  norm1_ = register_module("norm1", LayerNorm(LayerNormOptions({options.width})));
  qkv_ = register_module("qkv", Linear(options.width, 3 * options.width));
  out_ = register_module("out", Linear(options.width, options.width));
  norm2_ = register_module("norm2", LayerNorm(LayerNormOptions({options.width})));
  up_ = register_module("up", Linear(options.width, 4 * options.width));
  down_ = register_module("down", Linear(4 * options.width, options.width));
}

at::Tensor GptBlock::Attend(const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2), head = width / heads_;
  const auto parts = qkv_(x).view({batch, length, 3, heads_, head}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor future = torch::ones({length, length}, torch::kBool).triu(1).to(x.device());
  const at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(head));
  const at::Tensor weights =
      torch::softmax(scores.masked_fill(future, -std::numeric_limits<float>::infinity()), /*dim=*/-1);
  return out_(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width}));
}

at::Tensor GptBlock::forward(const at::Tensor& x) {
  const at::Tensor y = x + Attend(norm1_(x));
  return y + down_(torch::gelu(up_(norm2_(y))));
}

Gpt::Gpt(const GptOptions& options, const WrapBlock& wrap) {
  tokens_ = register_module("tokens", Embedding(options.vocabulary, options.width));
  positions_ = register_module("positions", Embedding(options.context, options.width));
  for (int64_t i = 0; i < options.layers; ++i) {
    auto [module, forward] = wrap(std::make_shared<GptBlock>(options));
    register_module("block" + std::to_string(i), module);
    blocks_.push_back(forward);
  }
  norm_ = register_module("norm", LayerNorm(LayerNormOptions({options.width})));
  head_ = register_module("head", Linear(options.width, options.vocabulary));
}

at::Tensor Gpt::forward(const at::Tensor& codes) {
  at::Tensor x = tokens_(codes) + positions_(torch::arange(codes.size(1), codes.options()));
  for (const Forward& block : blocks_) x = block(x);
  return head_(norm_(x));
}

}  // namespace cohort::examples
