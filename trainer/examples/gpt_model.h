// A small GPT over characters: pre-norm blocks of causal attention and a two-layer network, learnt positions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"

namespace cohort::examples {

struct GptOptions {
  int64_t vocabulary = 65;
  int64_t context = 64;  // characters that a prediction sees at most
  int64_t layers = 3;
  int64_t heads = 4;
  int64_t width = 64;
};

// The sizes of all parameters of such a model, without memory for them.
std::vector<std::vector<int64_t>> GptSizes(const GptOptions& options);

class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptOptions& options);
  // [batch, length, width] -> the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor Attend(const at::Tensor& x);
  int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, out_{nullptr}, up_{nullptr}, down_{nullptr};
};

class Gpt : public torch::nn::Module {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  // Returns the module that stands for a block: the block itself, or a module that shards it.
  using WrapBlock =
      std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>(const std::shared_ptr<GptBlock>&)>;

  // Weights depend on torch's seed alone.
  Gpt(const GptOptions& options, const WrapBlock& wrap);
  // Character codes [batch, length <= context] -> logits [batch, length, vocabulary].
  at::Tensor forward(const at::Tensor& codes);

 private:
  std::vector<Forward> blocks_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};

}  // namespace cohort::examples
