#include "cohort/trainer/nn/linear.h"

#include <cmath>

#include "torch/torch.h"

namespace cohort::trainer::nn {

LinearImpl::LinearImpl(const LinearOptions& chosen) : options(chosen) { reset(); }

void LinearImpl::reset() {
  if (cut_ != nullptr) {  // a clone in the making: it has copies of all members, and clone() fills its parameters
    weight = register_parameter("weight", torch::empty_like(weight), weight.requires_grad());
    bias = bias.defined() ? register_parameter("bias", torch::empty_like(bias), bias.requires_grad())
                          : register_parameter("bias", {}, /*requires_grad=*/false);
    cut_ = cut_->ForClone(weight, bias);
    return;
  }
  weight = register_parameter("weight", torch::empty({options.out_features(), options.in_features()}));
  bias = options.bias() ? register_parameter("bias", torch::empty({options.out_features()}))
                        : register_parameter("bias", {}, /*requires_grad=*/false);
  reset_parameters();
}

void LinearImpl::reset_parameters() {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5));
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  torch::nn::init::uniform_(bias, -bound, bound);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "cohort::trainer::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ")";
}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  if (cut_ != nullptr) {
    cut_->layer().set_adapter(adapter());
    return cut_->forward(input);
  }
  return WithAdapter(torch::nn::functional::linear(input, weight, bias), input);
}

void LinearImpl::set_cut(std::shared_ptr<CutLayer> cut) {
  TORCH_CHECK(cut_ == nullptr, "nn::Linear: the layer is cut already");
  cut_ = std::move(cut);
}

// Without a mesh and a place the masks are torch's.
std::optional<ActivationPart> LinearImpl::input_part(const at::Tensor& input) const {
  if (cut_ != nullptr) return cut_->layer().input_part(input);
  return random_place().known() ? std::optional(ActivationPart()) : std::nullopt;
}

at::Tensor LinearImpl::low_rank(const at::Tensor& input, const at::Tensor& a, const at::Tensor& b) {
  if (cut_ != nullptr) return cut_->layer().low_rank(input, a, b);
  return torch::nn::functional::linear(torch::nn::functional::linear(input, a), b);
}

LayerForm LinearImpl::adaptable_form() const {
  if (cut_ != nullptr) return cut_->layer().adaptable_form();
  return {.kind = LayerKind::kLinear, .in_features = options.in_features(), .out_features = options.out_features()};
}

}  // namespace cohort::trainer::nn
