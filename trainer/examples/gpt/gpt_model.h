// A small GPT over characters: pre-norm blocks of causal attention and a two-layer network, learnt positions. Its
// layers may be cut over a tensor axis. On an axis of one rank they are ordinary ones with the same names and values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/parallel_transformer_block.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/normalization.h"

namespace cohort::examples {

struct GptOptions {
  int64_t vocabulary = 65;
  int64_t context = 64;  // characters that a prediction sees at most
  int64_t layers = 3;
  int64_t heads = 4;
  int64_t width = 64;
  double dropout = 0;
  bool tied = false;      // the head has the weight of the token embedding
  bool autocast = false;  // forward passes compute in bfloat16 where that is safe
};

// The sizes of all parameters of such a model, without memory for them.
std::vector<std::vector<int64_t>> GptSizes(const GptOptions& options);

using GptBlock = trainer::ParallelTransformerBlockImpl;

// A part of the model, for a stage of a pipeline: layers [begin, end) of the embeddings, the blocks and the head.
struct GptPart {
  int begin = 0, end = 0;
};

// The last layer.
struct GptHead : trainer::ColumnParallelLinearImpl {
  using ColumnParallelLinearImpl::ColumnParallelLinearImpl;
  // Uses another layer's weight instead of its own, which is that layer's parameter and not this one's.
  void Tie(const at::Tensor& shared);
  // Has a copy of it for a parameter again.
  void Untie();
};

class Gpt : public torch::nn::Module {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  // Returns the module that stands for a block: the block itself, or a module that shards it.
  using WrapBlock =
      std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>(const std::shared_ptr<GptBlock>&)>;

  // Weights depend on torch's seed alone. `axis` has the sequence in dimension 1.
  Gpt(const GptOptions& options, const trainer::TensorAxis& axis, const WrapBlock& wrap);
  // The layers of `whole` that belong to a part, under their names. A head without embeddings has its weight to itself.
  Gpt(const Gpt& whole, const GptPart& part, const WrapBlock& wrap);
  // Character codes [batch, length <= context] -> logits [batch, length, this rank's characters]. A part takes and
  // gives what is between layers, for sequences whose length is set on its axis if it has no embeddings.
  at::Tensor forward(const at::Tensor& x);

  // The mean loss of logits that forward returned. Collective over the axis.
  static at::Tensor Loss(const at::Tensor& logits, const at::Tensor& targets, const GptOptions& options,
                         const trainer::TensorAxis& axis);

 private:
  at::Tensor Compute(const at::Tensor& x);
  at::Tensor Positions(int64_t length);
  void AddBlock(int64_t number, const std::shared_ptr<GptBlock>& block, const WrapBlock& wrap);

  trainer::TensorAxis axis_;
  bool autocast_;
  std::vector<std::shared_ptr<GptBlock>> unwrapped_;
  std::vector<Forward> blocks_;
  trainer::VocabParallelEmbedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  std::shared_ptr<GptHead> head_;
};

}  // namespace cohort::examples
