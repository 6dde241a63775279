// KeptOptimizer: what an optimizer of a program's own says so that checkpoints keep it.
//
//   class Lion : public torch::optim::Optimizer, public KeptOptimizer { ... };
//
// SGD, Adam, AdamW, Adagrad and RMSprop of torch, and classes derived from them that have their options and states, are
// kept without it. StateOf (training_state.h) refuses others.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

class KeptOptimizer {
 public:
  virtual ~KeptOptimizer() = default;

  // The tensors that it remembers of a parameter, by names without dots; none before the first step. They have the
  // parameter's sizes, so that other ranks can load their parts of them, and share memory with the optimizer. "step" is
  // an int64 tensor without dimensions.
  virtual std::map<std::string, at::Tensor> ParameterState(const at::Tensor& parameter) const = 0;
  // Replaces them. Without tensors the parameter has no state, as before the first step.
  virtual void SetParameterState(const at::Tensor& parameter, const std::map<std::string, at::Tensor>& state) = 0;
  // The options of one of its groups, by name.
  virtual std::map<std::string, double> OptionValues(const torch::optim::OptimizerOptions& options) const = 0;
  // Replaces them by values of the same names.
  virtual void SetOptionValues(torch::optim::OptimizerOptions& options,
                               const std::map<std::string, double>& values) const = 0;
};

// The KeptOptimizer that is `optimizer`, or that MasterWeights or ZeroRedundancyOptimizer runs; null for none.
KeptOptimizer* KeptOptimizerOf(torch::optim::Optimizer& optimizer);

// Refuses an optimizer that checkpoints can't keep, before anything is trained. Local. Throws c10::Error, which names
// its class or that of its options. `of_shards`: its parameters are shards.
void CheckKept(torch::optim::Optimizer& optimizer, bool of_shards);

// Refuses torch's LBFGS, which computes inner products over all its parameters and calls its closure repeatedly. Local.
// Throws c10::Error: "<who>: LBFGS needs all parameters together, <why>".
void RefuseLbfgs(const torch::optim::Optimizer& optimizer, const std::string& who, const std::string& why);

}  // namespace cohort::trainer
