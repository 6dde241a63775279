#include "cohort/trainer/adapter/weight_layer.h"

#include "torch/torch.h"

namespace cohort::trainer {

std::unique_ptr<WeightLayer> WeightLayer::For(const std::shared_ptr<torch::nn::Module>& module) {
  nn::LayerForm form;
  if (auto* linear = module->as<torch::nn::LinearImpl>()) {
    form = {.kind = nn::LayerKind::kLinear,
            .in_features = linear->options.in_features(),
            .out_features = linear->options.out_features()};
    return std::unique_ptr<WeightLayer>(new WeightLayer(module, linear->weight, form));
  }
  if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
    form = {.kind = nn::LayerKind::kEmbedding,
            .in_features = embedding->options.num_embeddings(),
            .out_features = embedding->options.embedding_dim()};
    return std::unique_ptr<WeightLayer>(new WeightLayer(module, embedding->weight, form));
  }
  return nullptr;
}

at::Tensor WeightLayer::low_rank(const at::Tensor& input, const at::Tensor& a, const at::Tensor& b) {
  const bool linear = form_.kind == nn::LayerKind::kLinear;
  return torch::nn::functional::linear(linear ? torch::nn::functional::linear(input, a) : at::embedding(a.t(), input),
                                       b);
}

void WeightLayer::SetDelta(const at::Tensor& delta) {
  member_ = delta.defined() ? base_ + delta.to(base_.scalar_type()) : base_;
}

}  // namespace cohort::trainer
