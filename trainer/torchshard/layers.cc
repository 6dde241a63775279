#include "cohort/trainer/torchshard/layers.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/torchshard/cut_parameters.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/functional.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard::nn {
namespace {

using trainer::nn::LayerForm;
using trainer::nn::LayerKind;
using trainer::nn::LayerSplit;

void CheckDim(const char* layer, ParallelDim dim) {
  TORCH_CHECK(!dim.has_value() || (*dim >= -1 && *dim <= 1), layer, ": dim must be none, 0, 1 or -1, got ", *dim);
}

bool IsRows(ParallelDim dim) { return dim == ParallelDim(0); }

// This rank's features of an input, for a layer whose rows are cut.
at::Tensor OwnFeatures(const at::Tensor& x) {
  if (get_parallel_dim(x) == ParallelDim(-1)) return x;
  const at::Tensor own = distributed::scatter(x, -1);
  register_parallel_dim(own, -1);
  return own;
}

// Compares the tokens of the group's ranks. Collective.
void CheckSameTokens(const at::Tensor& tokens) {
  std::ostringstream text;
  text << "of sizes " << tokens.sizes() << "\n";
  const at::Tensor flat = tokens.detach().to(at::kCPU, at::kLong).reshape({-1});
  const int64_t* const values = flat.data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) text << "number " << i << " is " << values[i] << "\n";
  CheckSameSetup(distributed::get_group(),
                 "ParallelEmbedding: all ranks of the group need the same tokens, such as distributed::gather(tokens, "
                 "0)",
                 {{"tokens", text.str()}});
}

// The form of a layer that is cut along the rows of A in y = x A, which have the input's features, or along its
// columns.
LayerForm FormOf(LayerForm whole, ParallelDim dim) {
  if (!dim.has_value()) return whole;
  whole.axis = distributed::get_axis().axis();
  if (whole.axis.size == 1) return whole;
  const bool linear = whole.kind == LayerKind::kLinear;
  whole.split = IsRows(dim) ? LayerSplit::kInput : LayerSplit::kOutput;
  whole.cut = {.dim = IsRows(dim) == linear ? 1 : 0};
  return whole;
}

}  // namespace

ParallelLinearImpl::ParallelLinearImpl(ParallelLinearOptions options_in) : options(std::move(options_in)) { reset(); }

ParallelLinearImpl::ParallelLinearImpl(ParallelLinearOptions options_in, at::Tensor weight_in, at::Tensor bias_in)
    : options(std::move(options_in)) {
  weight = register_parameter("weight", weight_in, weight_in.requires_grad());
  bias = register_parameter("bias", bias_in, bias_in.defined() && bias_in.requires_grad());
}

void ParallelLinearImpl::reset() {
  CheckDim("ParallelLinear", options.dim());
  const std::vector<int64_t> sizes = {options.out_features(), options.in_features()};
  const bool cut = options.dim().has_value(), rows = IsRows(options.dim());
  weight = cut ? register_cut_parameter(*this, "weight", sizes, rows ? 1 : 0)
               : register_parameter("weight", torch::empty(sizes));
  if (!options.bias()) {
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
  } else if (cut && !rows) {
    bias = register_cut_parameter(*this, "bias", {options.out_features()}, 0);
  } else {
    bias = register_parameter("bias", torch::empty({options.out_features()}));
  }
  reset_parameters();
}

void ParallelLinearImpl::reset_parameters() {
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(options.in_features(), 1)));
  init::shard_init_helper_(InitRule::Uniform(-bound, bound), weight);
  if (bias.defined()) init::shard_init_helper_(InitRule::Uniform(-bound, bound), bias);
}

at::Tensor ParallelLinearImpl::forward(const at::Tensor& x) {
  if (IsRows(options.dim())) {
    const at::Tensor own = OwnFeatures(x);
    const at::Tensor y = WithAdapter(functional::parallel_linear(own, weight, {}, options.dim()), own);
    return bias.defined() ? y + bias : y;
  }
  at::Tensor y = WithAdapter(functional::parallel_linear(x, weight, bias, options.dim()), x);
  if (options.dim().has_value()) register_parallel_dim(y, -1);
  return y;
}

LayerForm ParallelLinearImpl::adaptable_form() const {
  return FormOf(
      {.kind = LayerKind::kLinear, .in_features = options.in_features(), .out_features = options.out_features()},
      options.dim());
}

// The input is whole, or this rank's features if rows are cut.
std::optional<ActivationPart> ParallelLinearImpl::input_part(const at::Tensor& x) const {
  if (!options.dim().has_value()) return std::nullopt;
  ActivationPart part;
  if (!IsRows(options.dim())) return part;
  const std::vector<Box> boxes = Placements().OrWhole(weight)->boxes();
  part.cut_dim = x.dim() - 1;
  part.begin = boxes.empty() ? 0 : boxes.front().offset[1];
  part.whole = options.in_features();
  return part;
}

at::Tensor ParallelLinearImpl::low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
  if (!options.dim().has_value()) {
    return torch::nn::functional::linear(torch::nn::functional::linear(x, a), b);
  }
  const TensorAxis& axis = distributed::get_axis();
  if (IsRows(options.dim())) return torch::nn::functional::linear(row_parallel_linear(x, a, axis), b);
  return column_parallel_linear(torch::nn::functional::linear(x, a), b, {}, axis);
}

void ParallelLinearImpl::parallelize(ParallelDim dim) {
  CheckDim("ParallelLinear", dim);
  TORCH_CHECK(!options.dim().has_value(), "ParallelLinear: the layer is cut already");
  if (!dim.has_value()) return;
  cut_parameter(weight, IsRows(dim) ? 1 : 0);
  if (bias.defined() && !IsRows(dim)) cut_parameter(bias, 0);
  options.dim(dim);
}

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions options_in) : options(std::move(options_in)) {
  const std::optional<int64_t>& padding = options.padding_idx();
  TORCH_CHECK(!padding.has_value() || (*padding >= 0 && *padding < options.num_embeddings()),
              "ParallelEmbedding: padding_idx ", *padding, " is outside of a vocabulary of ", options.num_embeddings());
  reset();
}

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions options_in, at::Tensor weight_in)
    : options(std::move(options_in)) {
  weight = register_parameter("weight", weight_in, weight_in.requires_grad());
}

void ParallelEmbeddingImpl::reset() {
  CheckDim("ParallelEmbedding", options.dim());
  const std::vector<int64_t> sizes = {options.num_embeddings(), options.embedding_dim()};
  weight = options.dim().has_value() ? register_cut_parameter(*this, "weight", sizes, IsRows(options.dim()) ? 0 : 1)
                                     : register_parameter("weight", torch::empty(sizes));
  reset_parameters();
}

void ParallelEmbeddingImpl::reset_parameters() {
  init::shard_init_helper_(InitRule::Normal(0, 1), weight);
  if (!options.padding_idx().has_value() || !HasData(weight)) return;
  const at::NoGradGuard no_grad;
  int64_t first = 0;
  for (const Box& box : Placements().OrWhole(weight)->boxes()) first = box.offset[0];
  const int64_t row = *options.padding_idx() - first;
  if (row >= 0 && row < weight.size(0)) weight[row].zero_();
}

at::Tensor ParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  if (options.dim().has_value() && !compared_) {
    CheckSameTokens(tokens);
    compared_ = true;
  }
  return WithAdapter(functional::parallel_embedding(tokens, weight, options.dim(), options.num_embeddings(),
                                                    options.embedding_dim(), options.padding_idx()),
                     tokens);
}

LayerForm ParallelEmbeddingImpl::adaptable_form() const {
  return FormOf(
      {.kind = LayerKind::kEmbedding, .in_features = options.num_embeddings(), .out_features = options.embedding_dim()},
      options.dim());
}

at::Tensor ParallelEmbeddingImpl::low_rank(const at::Tensor& tokens, const at::Tensor& a, const at::Tensor& b) {
  const ParallelDim rows = IsRows(options.dim()) ? options.dim() : ParallelDim();
  const at::Tensor reduced = functional::parallel_embedding(tokens, a.t(), rows, options.num_embeddings(), a.size(0));
  if (!options.dim().has_value() || rows.has_value()) return torch::nn::functional::linear(reduced, b);
  comm::Communicator& group = distributed::get_group();
  return gather_from_region(torch::nn::functional::linear(copy_to_region(reduced, group), b), group, -1,
                            options.embedding_dim());
}

void ParallelEmbeddingImpl::parallelize(ParallelDim dim) {
  CheckDim("ParallelEmbedding", dim);
  TORCH_CHECK(!options.dim().has_value(), "ParallelEmbedding: the layer is cut already");
  if (!dim.has_value()) return;
  cut_parameter(weight, IsRows(dim) ? 0 : 1);
  options.dim(dim);
}

at::Tensor ParallelCrossEntropyLossImpl::forward(const at::Tensor& logits, const at::Tensor& target) {
  return functional::parallel_cross_entropy(logits, target, options);
}

}  // namespace cohort::trainer::torchshard::nn
