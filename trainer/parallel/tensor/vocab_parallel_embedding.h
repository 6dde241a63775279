// VocabParallelEmbedding: an embedding whose rows are cut over a TensorAxis, after Megatron-LM. Each rank looks up the
// tokens that it has, leaves zeros for the others, and the results are added up.
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

struct VocabParallelEmbeddingOptions {
  VocabParallelEmbeddingOptions(int64_t num_embeddings, int64_t embedding_dim)
      : num_embeddings_(num_embeddings), embedding_dim_(embedding_dim) {}
  TORCH_ARG(int64_t, num_embeddings);  // of the whole vocabulary; it need not divide by the ranks
  TORCH_ARG(int64_t, embedding_dim);
  // A token whose row starts at zero and gets no gradient.
  TORCH_ARG(std::optional<int64_t>, padding_idx) = std::nullopt;
};

// Returns the rows of `weight`, this rank's part of a vocabulary of which it has the tokens from `first` on. Rows of
// other ranks' tokens are zero. No rows at all are fine. Local.
at::Tensor OwnEmbeddings(const at::Tensor& tokens, const at::Tensor& weight, int64_t first,
                         std::optional<int64_t> padding_idx = std::nullopt);

class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>, public nn::AdaptableLayer {
 public:
  // Rows start as torch's Embedding's, as one process would draw them if all ranks have the same torch::manual_seed.
  // Local. Throws c10::Error for a padding_idx outside of the vocabulary.
  VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions options, TensorAxis axis);
  void reset() override;
  void reset_parameters();
  // Tokens, the same on every rank -> [..., embedding_dim]: whole on every rank, or with sequence parallelism this
  // rank's part of the sequence. Collective over the axis, as is backward; blocks. Throws DistributedError, and
  // c10::Error for a token outside of the vocabulary (on the CPU only; on a device its embedding is zero).
  at::Tensor forward(const at::Tensor& tokens);

  nn::LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& tokens, const at::Tensor& a, const at::Tensor& b) override;

  VocabParallelEmbeddingOptions options;
  TensorAxis axis;
  at::Tensor weight;  // [this rank's tokens, embedding_dim]

 private:
  int64_t first_ = 0;  // this rank's first token
};
TORCH_MODULE(VocabParallelEmbedding);

}  // namespace cohort::trainer
