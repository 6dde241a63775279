#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"

#include <utility>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

Placement WeightPlacement(const VocabParallelEmbeddingOptions& options, const TensorAxis& axis) {
  return CutOver(axis, {options.num_embeddings(), options.embedding_dim()}, {.dim = 0}, "VocabParallelEmbedding");
}

// Adds up the rows that the ranks found.
at::Tensor Summed(const at::Tensor& own, const TensorAxis& axis) {
  if (axis.size() == 1) return own;
  if (axis.sequence_parallel()) {
    return reduce_scatter_to_sequence_region(own, axis.group(), axis.options().sequence_dim);
  }
  return reduce_from_region(own, axis.group());
}

}  // namespace

at::Tensor OwnEmbeddings(const at::Tensor& tokens, const at::Tensor& weight, int64_t first,
                         std::optional<int64_t> padding_idx) {
  const int64_t rows = weight.size(0);
  if (rows == 0) {  // zeros that depend on the weight, so that it has a gradient
    std::vector<int64_t> sizes = tokens.sizes().vec();
    sizes.push_back(0);
    // Autocasting would make the product, but no other rank's rows, of a small type.
    return torch::zeros(sizes, weight.options().requires_grad(false)).matmul(weight).to(weight.scalar_type());
  }
  const at::Tensor places = tokens - first;
  const at::Tensor elsewhere = places.lt(0).logical_or(places.ge(rows));
  const bool pads = padding_idx.has_value() && *padding_idx >= first && *padding_idx < first + rows;
  const at::Tensor found = torch::embedding(weight, places.masked_fill(elsewhere, 0), pads ? *padding_idx - first : -1);
  return found.masked_fill(elsewhere.unsqueeze(-1), 0);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions options_in, TensorAxis axis_in)
    : options(options_in), axis(std::move(axis_in)) {
  const std::optional<int64_t>& padding = options.padding_idx();
  TORCH_CHECK(!padding.has_value() || (*padding >= 0 && *padding < options.num_embeddings()),
              "VocabParallelEmbedding: padding_idx ", *padding, " is outside of a vocabulary of ",
              options.num_embeddings());
  reset();
}

void VocabParallelEmbeddingImpl::reset() {
  const Placement placement = WeightPlacement(options, axis);
  const std::vector<Box> boxes = placement.boxes();
  first_ = boxes.empty() ? 0 : boxes.front().offset[0];
  weight = register_parameter("weight", torch::empty(placement.local_sizes()));
  Placements().Add(weight, placement);
  reset_parameters();
}

void VocabParallelEmbeddingImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  DrawPart(weight, WeightPlacement(options, axis), InitRule::Normal(0, 1));
  const std::optional<int64_t>& padding = options.padding_idx();
  if (padding.has_value() && *padding >= first_ && *padding < first_ + weight.size(0) && HasData(weight)) {
    weight[*padding - first_].zero_();
  }
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  if (tokens.is_cpu() && tokens.numel() > 0) {
    const auto [least, most] = torch::aminmax(tokens);
    TORCH_CHECK(least.item<int64_t>() >= 0 && most.item<int64_t>() < options.num_embeddings(),
                "VocabParallelEmbedding: tokens ", least.item<int64_t>(), " to ", most.item<int64_t>(),
                " for a vocabulary of ", options.num_embeddings());
  }
  return WithAdapter(Summed(OwnEmbeddings(tokens, weight, first_, options.padding_idx()), axis), tokens);
}

nn::LayerForm VocabParallelEmbeddingImpl::adaptable_form() const {
  return {.kind = nn::LayerKind::kEmbedding,
          .in_features = options.num_embeddings(),
          .out_features = options.embedding_dim(),
          .split = axis.size() > 1 ? nn::LayerSplit::kInput : nn::LayerSplit::kNone,
          .axis = axis.axis(),
          .cut = {.dim = 0}};
}

at::Tensor VocabParallelEmbeddingImpl::low_rank(const at::Tensor& tokens, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reduced = Summed(OwnEmbeddings(tokens, a.t(), first_), axis);
  return torch::nn::functional::linear(reduced, axis.SharedParameter(b));
}

}  // namespace cohort::trainer
