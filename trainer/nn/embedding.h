// Embedding: torch::nn::Embedding that can be adapted in place (linear.h says why). It takes torch's options but for
// max_norm, scale_grad_by_freq and sparse.
#pragma once

#include <memory>
#include <optional>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/options/embedding.h"
#include "torch/nn/pimpl.h"

namespace cohort::trainer::nn {

using torch::nn::EmbeddingOptions;

class EmbeddingImpl : public torch::nn::Cloneable<EmbeddingImpl>, public AdaptableLayer {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim)
      : EmbeddingImpl(EmbeddingOptions(num_embeddings, embedding_dim)) {}
  // Throws c10::Error for options that it does not take.
  explicit EmbeddingImpl(const EmbeddingOptions& options);

  void reset() override;
  // Draws initial values as torch::nn::Embedding does, from torch's generator.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  // Codes of any sizes -> [..., embedding_dim].
  at::Tensor forward(const at::Tensor& codes);

  LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& codes, const at::Tensor& a, const at::Tensor& b) override;
  std::optional<ActivationPart> input_part(const at::Tensor& codes) const override;

  // Lets forward compute as `cut`, which shares this layer's parameters (parallelize/parallelize.h). Throws c10::Error
  // if the layer is cut already.
  void set_cut(std::shared_ptr<CutLayer> cut);

  EmbeddingOptions options;
  at::Tensor weight;  // [num_embeddings, embedding_dim]

 private:
  std::shared_ptr<CutLayer> cut_;  // null: this layer is whole
};

TORCH_MODULE(Embedding);

}  // namespace cohort::trainer::nn
