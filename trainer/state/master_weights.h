// MasterWeights: an optimizer for parameters in bfloat16 or float16 that steps float32 copies of them.
//
//   model->to(torch::kBFloat16);
//   MasterWeights<Adam> optimizer(model->parameters(), AdamOptions(1e-3));
//   ZeroRedundancyOptimizer<MasterWeights<Adam>> split(model->parameters(), *world, AdamOptions(1e-3));
//
// With P parameters a rank keeps 2 P bytes of them, 2 P of gradients, and 12 P of copies and Adam's state.
// ZeroRedundancyOptimizer splits the 12 P. Steps smaller than a parameter's last bit add up in the copy and are not
// lost.
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

// The part that does not depend on the optimizer's class. The options of its groups may be changed between steps.
class MasterWeightsBase : public torch::optim::Optimizer {
 public:
  using Factory =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;

  // Copies the parameters; shared ones are copied once. Float32 and float64 parameters need no copy.
  MasterWeightsBase(std::vector<torch::optim::OptimizerParamGroup> groups,
                    std::unique_ptr<torch::optim::OptimizerOptions> defaults, const Factory& factory);

  // Steps the copies by the parameters' gradients and rounds them to the parameters. It takes a few million elements at
  // a time, so that float32 gradients need little memory. Returns the closure's loss.
  at::Tensor step(LossClosure closure = nullptr) override;
  // The next step alone multiplies float32 gradients by `factor` (1 / loss scale, a clipping coefficient). In float16,
  // 1e-8 would be 0. The parameters' own gradients stay as they are.
  void set_gradient_factor(double factor) { gradient_factor_ = factor; }
  // Both throw c10::Error: they would keep nothing. SaveTrainingState keeps the optimizer's state.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // Returns the copy of a parameter, with values that others have written to the parameter. Throws c10::Error for a
  // parameter of another optimizer.
  const at::Tensor& MasterOf(const at::Tensor& parameter);
  // Returns the optimizer of the copies.
  torch::optim::Optimizer& master_optimizer() { return *masters_optimizer_; }

 private:
  void Follow(size_t index);

  std::vector<at::Tensor> parameters_, masters_;  // alike
  std::vector<int64_t> versions_;                 // of the parameters, when their copies were last equal to them
  std::unique_ptr<torch::optim::Optimizer> masters_optimizer_;
  double gradient_factor_ = 1;
};

// Returns the MasterWeights that is `optimizer`, or that steps this rank's parameters inside a ZeroRedundancyOptimizer.
// Null otherwise. All ranks get the same kind of answer.
MasterWeightsBase* MasterWeightsOf(torch::optim::Optimizer& optimizer);

// Makes gradients of the optimizer's parameters in small types float32, so that scaling and inspection lose nothing.
// They then take 4 bytes an element. NarrowGradients restores their parameters' types.
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
