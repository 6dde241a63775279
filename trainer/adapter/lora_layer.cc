#include "cohort/trainer/adapter/lora_layer.h"

#include <algorithm>
#include <cmath>

#include "cohort/trainer/adapter/layer_pattern.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/tensor/parallel_dropout.h"
#include "cohort/trainer/state/sharded_init.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using nn::LayerForm;
using nn::LayerKind;
using nn::LayerSplit;

constexpr const char* kA = "lora_A";
constexpr const char* kB = "lora_B";
constexpr const char* kEmbeddingA = "lora_embedding_A";
constexpr const char* kEmbeddingB = "lora_embedding_B";

// A matrix in a module of its own, so that it is named "lora_A.weight" as PEFT names it.
struct MatrixImpl : torch::nn::Module {
  explicit MatrixImpl(at::Tensor values) { weight = register_parameter("weight", std::move(values)); }
  at::Tensor weight;
};

Placement PlacementOf(const LayerForm& form, std::vector<int64_t> sizes, LayerSplit split, int dim) {
  Placement placement(std::move(sizes));
  if (form.split != LayerSplit::kNone && form.split == split) {
    Cut cut = form.cut;
    cut.dim = dim;
    ThrowUnlessOk(placement.Split(form.axis, cut), "placing an adapter");
  }
  return placement;
}

}  // namespace

double LoraConfig::scale() const {
  return lora_alpha / (use_rslora ? std::sqrt(static_cast<double>(r)) : static_cast<double>(r));
}

LoraConfig LoraConfig::For(const std::string& name) const {
  LoraConfig own = *this;
  own.r = ForLayer(rank_pattern, name, r);
  own.lora_alpha = ForLayer(alpha_pattern, name, lora_alpha);
  own.rank_pattern.clear();
  own.alpha_pattern.clear();
  return own;
}

LoraLayer::LoraLayer(const nn::AdaptableLayer& layer, torch::nn::Module& module, std::string name,
                     const LoraConfig& config)
    : name_(std::move(name)),
      form_(layer.adaptable_form()),
      scale_(config.scale()),
      a_placement_(PlacementOf(form_, {config.r, form_.in_features}, LayerSplit::kInput, 1)),
      b_placement_(PlacementOf(form_, {form_.out_features, config.r}, LayerSplit::kOutput, 0)) {
  const bool linear = form_.kind == LayerKind::kLinear;
  a_placement_.set_name(name_ + "." + a_name());
  b_placement_.set_name(name_ + "." + b_name());
  const auto options = at::TensorOptions(config.dtype).device(layer.adaptable_weight().device());
  a_ = torch::zeros(a_placement_.local_sizes(), options);
  b_ = torch::zeros(b_placement_.local_sizes(), options);
  Initialise(config.seed);
  if (linear) {
    a_ = module.register_module(kA, std::make_shared<MatrixImpl>(a_))->weight;
    b_ = module.register_module(kB, std::make_shared<MatrixImpl>(b_))->weight;
    if (config.lora_dropout > 0) {
      dropout_ = module.register_module("lora_dropout", torch::nn::Dropout(config.lora_dropout));
    }
  } else {
    a_ = module.register_parameter(kEmbeddingA, a_);
    b_ = module.register_parameter(kEmbeddingB, b_);
  }
}

const char* LoraLayer::a_name() const { return form_.kind == LayerKind::kLinear ? "lora_A.weight" : kEmbeddingA; }
const char* LoraLayer::b_name() const { return form_.kind == LayerKind::kLinear ? "lora_B.weight" : kEmbeddingB; }

void LoraLayer::Initialise(uint64_t seed) {
  const bool linear = form_.kind == LayerKind::kLinear;
  const Placement& placement = linear ? a_placement_ : b_placement_;
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(form_.in_features, 1)));
  const InitRule rule = linear ? InitRule::Uniform(-bound, bound) : InitRule::Normal(0, 1);
  InitPart(linear ? a_ : b_, placement, placement.name(), seed, rule);
}

at::Tensor LoraLayer::forward(nn::AdaptableLayer& layer, const at::Tensor& input) {
  TORCH_CHECK(layer.adaptable_form().split == form_.split, "Lora: layer ", name_,
              " was cut after its adapter was made, which is not cut; cut layers first (parallelize, CutLayers, "
              "convert_parallel_linear), and make Lora then");
  at::Tensor x = input;
  if (form_.kind == LayerKind::kLinear) {
    x = x.to(a_.scalar_type());
    if (!dropout_.is_empty()) x = Dropped(layer, x);
  }
  return layer.low_rank(x, a_, b_) * scale_;
}

at::Tensor LoraLayer::Dropped(const nn::AdaptableLayer& layer, const at::Tensor& x) {
  const std::optional<ActivationPart> part = layer.input_part(x);
  if (!part.has_value()) return dropout_(x);
  if (!dropout_->is_training()) return x;
  return x * DropoutFactors(x.sizes(), dropout_->options.p(), HashOfName(name_), *part, x.options());
}

at::Tensor LoraLayer::WeightDelta() const {
  const at::Tensor delta = at::matmul(b_.to(at::kFloat), a_.to(at::kFloat)) * scale_;
  return form_.kind == LayerKind::kLinear ? delta : delta.t();
}

}  // namespace cohort::trainer
