// WeightLayer: a layer of torch's own, adapted through its weight.
//
// torch::nn::Linear and torch::nn::Embedding have no place for an adapter, and C++ cannot replace them in the modules
// that hold them by type. Their `weight` member can be replaced: by W + delta, a tensor with a history, so that
// gradients reach the adapter. The registered parameter stays W, and so do checkpoints and optimizers.
#pragma once

#include <memory>

#include "cohort/trainer/nn/adaptable_layer.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

class WeightLayer : public nn::AdaptableLayer {
 public:
  // Returns null unless `module` is a torch::nn::Linear or torch::nn::Embedding.
  static std::unique_ptr<WeightLayer> For(const std::shared_ptr<torch::nn::Module>& module);

  nn::LayerForm adaptable_form() const override { return form_; }
  at::Tensor adaptable_weight() const override { return base_; }

  at::Tensor low_rank(const at::Tensor& input, const at::Tensor& a, const at::Tensor& b) override;

  // Lets the layer multiply by the base plus `delta`, or by the base alone if `delta` is undefined.
  void SetDelta(const at::Tensor& delta);

 private:
  WeightLayer(std::shared_ptr<torch::nn::Module> module, at::Tensor& member, nn::LayerForm form)
      : module_(std::move(module)), member_(member), base_(member), form_(form) {}

  std::shared_ptr<torch::nn::Module> module_;  // keeps `member_`
  at::Tensor& member_;
  at::Tensor base_;
  nn::LayerForm form_;
};

}  // namespace cohort::trainer
