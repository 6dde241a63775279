// ParallelLinear, ParallelEmbedding and ParallelCrossEntropyLoss: torch's layers whose weights may be cut over the
// parallel group. With dim none they are torch's layers, and parallelize() cuts them later.
//
// Each rank only ever makes its own part of a cut weight (TorchShard makes all of it everywhere and takes a slice).
// Initial values are torch's: any number of ranks with the same torch::manual_seed get those of one process.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_cross_entropy.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/torchshard/parallel_dim.h"
#include "torch/arg.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/module.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cohort::trainer::torchshard::nn {

struct ParallelLinearOptions {
  ParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  TORCH_ARG(int64_t, in_features);  // of the whole layer; they need not divide by the group
  TORCH_ARG(int64_t, out_features);
  TORCH_ARG(bool, bias) = true;
  TORCH_ARG(ParallelDim, dim) = std::nullopt;  // none, 0 (rows), 1 or -1 (columns): functional.h
};

class ParallelLinearImpl : public torch::nn::Cloneable<ParallelLinearImpl>, public trainer::nn::AdaptableLayer {
 public:
  // Local. Throws c10::Error for another dim, and for a dim without a process group.
  explicit ParallelLinearImpl(ParallelLinearOptions options);
  // A whole layer of parameters that exist: they stay the same tensors, frozen ones frozen. It draws nothing.
  ParallelLinearImpl(ParallelLinearOptions options, at::Tensor weight, at::Tensor bias);
  ParallelLinearImpl(int64_t in_features, int64_t out_features)
      : ParallelLinearImpl(ParallelLinearOptions(in_features, out_features)) {}
  void reset() override;
  void reset_parameters();
  // nn::functional::parallel_linear with this layer's weight.
  at::Tensor forward(const at::Tensor& x);
  // Cuts a whole layer where it is: its parameters keep this rank's part of their values and stay the same tensors, so
  // that optimizers know them. Local. Throws c10::Error if it is cut already.
  void parallelize(ParallelDim dim);

  trainer::nn::LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) override;
  std::optional<ActivationPart> input_part(const at::Tensor& x) const override;

  ParallelLinearOptions options;
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(ParallelLinear);

struct ParallelEmbeddingOptions {
  ParallelEmbeddingOptions(int64_t num_embeddings, int64_t embedding_dim)
      : num_embeddings_(num_embeddings), embedding_dim_(embedding_dim) {}
  TORCH_ARG(int64_t, num_embeddings);
  TORCH_ARG(int64_t, embedding_dim);
  TORCH_ARG(std::optional<int64_t>, padding_idx) = std::nullopt;
  TORCH_ARG(ParallelDim, dim) = std::nullopt;  // none, 0 (tokens), 1 or -1 (features)
};

class ParallelEmbeddingImpl : public torch::nn::Cloneable<ParallelEmbeddingImpl>, public trainer::nn::AdaptableLayer {
 public:
  // As ParallelLinearImpl.
  explicit ParallelEmbeddingImpl(ParallelEmbeddingOptions options);
  ParallelEmbeddingImpl(ParallelEmbeddingOptions options, at::Tensor weight);
  ParallelEmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim)
      : ParallelEmbeddingImpl(ParallelEmbeddingOptions(num_embeddings, embedding_dim)) {}
  void reset() override;
  void reset_parameters();
  // nn::functional::parallel_embedding with this layer's weight. If it is cut, all ranks of the group need the same
  // tokens, such as distributed::gather(tokens, 0). The first call compares them, by 16 bytes a rank, and throws
  // DistributedError on all ranks where they differ.
  at::Tensor forward(const at::Tensor& tokens);
  void parallelize(ParallelDim dim);

  trainer::nn::LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& tokens, const at::Tensor& a, const at::Tensor& b) override;

  ParallelEmbeddingOptions options;
  at::Tensor weight;

 private:
  bool compared_ = false;  // the tokens of the ranks, once
};
TORCH_MODULE(ParallelEmbedding);

// nn::functional::parallel_cross_entropy with options: `weight`, `ignore_index`, `reduction`, `label_smoothing`.
class ParallelCrossEntropyLossImpl : public torch::nn::Module {
 public:
  explicit ParallelCrossEntropyLossImpl(VocabParallelCrossEntropyOptions options = {}) : options(std::move(options)) {}
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& target);

  VocabParallelCrossEntropyOptions options;
};
TORCH_MODULE(ParallelCrossEntropyLoss);

}  // namespace cohort::trainer::torchshard::nn
