// MasterWeights: an optimizer for parameters in bfloat16 or float16 that steps float32 copies of them.
//
//   model->to(torch::kBFloat16);
//   MasterWeights<Adam> optimizer(model->parameters(), AdamOptions(1e-3));
//   ZeroRedundancyOptimizer<MasterWeights<Adam>> split(model->parameters(), *world, AdamOptions(1e-3));
//
// With P parameters a rank keeps 2 P bytes of them, 2 P of gradients, and 12 P of copies and Adam's state, which
// ZeroRedundancyOptimizer splits. Steps smaller than a parameter's last bit add up in the copy instead of being lost.
//
// Source: Micikevicius et al., "Mixed Precision Training" (ICLR 2018).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Everything that does not depend on the optimizer's class. Its groups' options may be changed between steps.
class MasterWeightsBase : public torch::optim::Optimizer {
 public:
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;

  // Copies the parameters, one that modules share once. Float32 and float64 parameters need no copy.
  MasterWeightsBase(std::vector<torch::optim::OptimizerParamGroup> groups,
                    std::unique_ptr<torch::optim::OptimizerOptions> defaults, const Factory& factory);

  // Steps the copies by the parameters' gradients, a few million elements at a time (so that float32 gradients need
  // little memory), and rounds them to the parameters. Returns the closure's loss.
  at::Tensor step(LossClosure closure = nullptr) override;
  // The next step, and no other, multiplies gradients by `factor` when they are float32 (1 / loss scale, a clipping
  // coefficient): in float16, 1e-8 would be 0. The parameters' own are left as they are.
  void set_gradient_factor(double factor) { gradient_factor_ = factor; }
  // Throw c10::Error: SaveTrainingState keeps what the optimizer remembers, these would keep nothing.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // The copy of a parameter, with the values that others have written to it. Throws c10::Error for one that is not of
  // this optimizer.
  const at::Tensor& MasterOf(const at::Tensor& parameter);
  // The optimizer of the copies.
  torch::optim::Optimizer& master_optimizer() { return *masters_optimizer_; }

 private:
  void Follow(size_t index);

  std::vector<at::Tensor> parameters_, masters_;  // alike
  std::vector<int64_t> versions_;                 // of the parameters, when their copies were last equal to them
  std::unique_ptr<torch::optim::Optimizer> masters_optimizer_;
  double gradient_factor_ = 1;
};

// `optimizer` itself, or what a ZeroRedundancyOptimizer has of this rank's parameters, if that is a MasterWeights; null
// otherwise. On all ranks alike.
MasterWeightsBase* MasterWeightsOf(torch::optim::Optimizer& optimizer);

// Makes gradients of the optimizer's parameters in small types float32, so that they may be scaled and looked at
// without loss; they take 4 bytes an element then. NarrowGradients gives them their parameters' types again.
void WidenGradients(torch::optim::Optimizer& optimizer);
void NarrowGradients(torch::optim::Optimizer& optimizer);

template <typename OptimizerClass>
class MasterWeights : public MasterWeightsBase {
 public:
  template <typename Defaults>
  MasterWeights(std::vector<at::Tensor> parameters, const Defaults& defaults)
      : MasterWeights(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults) {}
  template <typename Defaults>
  MasterWeights(std::vector<torch::optim::OptimizerParamGroup> groups, const Defaults& defaults)
      : MasterWeightsBase(std::move(groups), std::make_unique<Defaults>(defaults),
                          [&defaults](std::vector<torch::optim::OptimizerParamGroup> masters) {
                            return std::make_unique<OptimizerClass>(std::move(masters), defaults);
                          }) {}
};

}  // namespace cohort::trainer
