#include "cohort/trainer/nn/embedding.h"

#include "torch/torch.h"

namespace cohort::trainer::nn {

EmbeddingImpl::EmbeddingImpl(const EmbeddingOptions& chosen) : options(chosen) {
  TORCH_CHECK(!options.max_norm().has_value() && !options.scale_grad_by_freq() && !options.sparse(),
              "nn::Embedding takes no max_norm, scale_grad_by_freq or sparse; use torch::nn::Embedding");
  reset();
}

void EmbeddingImpl::reset() {
  if (cut_ != nullptr) {  // a clone in the making: it has copies of all members, and clone() fills its parameter
    weight = register_parameter("weight", torch::empty_like(weight), weight.requires_grad());
    cut_ = cut_->ForClone(weight, /*bias=*/{});
    return;
  }
  if (options._weight().defined()) {
    TORCH_CHECK(options._weight().sizes() == at::IntArrayRef({options.num_embeddings(), options.embedding_dim()}),
                "nn::Embedding: the weight given has sizes ", options._weight().sizes(), ", not ",
                options.num_embeddings(), " by ", options.embedding_dim());
    weight = register_parameter("weight", options._weight());
    return;
  }
  weight = register_parameter("weight", torch::empty({options.num_embeddings(), options.embedding_dim()}));
  reset_parameters();
}

void EmbeddingImpl::reset_parameters() {
  torch::nn::init::normal_(weight);
  const at::NoGradGuard no_grad;
  if (options.padding_idx().has_value()) weight[*options.padding_idx()].fill_(0);
}

void EmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "cohort::trainer::nn::Embedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim() << ")";
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& codes) {
  if (cut_ != nullptr) {
    cut_->layer().set_adapter(adapter());
    return cut_->forward(codes);
  }
  return WithAdapter(at::embedding(weight, codes, options.padding_idx().value_or(-1)), codes);
}

void EmbeddingImpl::set_cut(std::shared_ptr<CutLayer> cut) {
  TORCH_CHECK(cut_ == nullptr, "nn::Embedding: the layer is cut already");
  cut_ = std::move(cut);
}

std::optional<ActivationPart> EmbeddingImpl::input_part(const at::Tensor& codes) const {
  return cut_ == nullptr ? std::nullopt : cut_->layer().input_part(codes);
}

at::Tensor EmbeddingImpl::low_rank(const at::Tensor& codes, const at::Tensor& a, const at::Tensor& b) {
  if (cut_ != nullptr) return cut_->layer().low_rank(codes, a, b);
  return torch::nn::functional::linear(at::embedding(a.t(), codes), b);
}

LayerForm EmbeddingImpl::adaptable_form() const {
  if (cut_ != nullptr) return cut_->layer().adaptable_form();
  return {
      .kind = LayerKind::kEmbedding, .in_features = options.num_embeddings(), .out_features = options.embedding_dim()};
}

}  // namespace cohort::trainer::nn
