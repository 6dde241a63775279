// Linear: torch::nn::Linear that can be adapted in place. C++ programs hold layers by their type and call a `forward`
// that is not virtual, so torch's own layers cannot be replaced or changed in a model that exists.
//
//   namespace nn = cohort::trainer::nn;
//   nn::Linear up = register_module("up", nn::Linear(64, 256));   // options, names and initial values are torch's
#pragma once

#include <memory>
#include <optional>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/options/linear.h"
#include "torch/nn/pimpl.h"

namespace cohort::trainer::nn {

using torch::nn::LinearOptions;

class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public AdaptableLayer {
 public:
  LinearImpl(int64_t in_features, int64_t out_features) : LinearImpl(LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const LinearOptions& options);

  void reset() override;
  // Draws initial values as torch::nn::Linear does, from torch's generator.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  // [..., in_features] -> [..., out_features].
  at::Tensor forward(const at::Tensor& input);

  LayerForm adaptable_form() const override;
  at::Tensor adaptable_weight() const override { return weight; }
  at::Tensor low_rank(const at::Tensor& input, const at::Tensor& a, const at::Tensor& b) override;
  std::optional<ActivationPart> input_part(const at::Tensor& input) const override;

  // Lets forward compute as `cut`, which shares this layer's parameters (parallelize/parallelize.h). Throws c10::Error
  // if the layer is cut already.
  void set_cut(std::shared_ptr<CutLayer> cut);

  LinearOptions options;
  at::Tensor weight;  // [out_features, in_features]
  at::Tensor bias;    // [out_features], or undefined

 private:
  std::shared_ptr<CutLayer> cut_;  // null: this layer is whole
};

TORCH_MODULE(Linear);

}  // namespace cohort::trainer::nn
