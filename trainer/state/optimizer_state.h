// The state that torch's optimizers keep for a parameter, as named tensors.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// MasterWeights' copy of a parameter, among its state.
inline constexpr const char kMasterWeight[] = "master_weight";

// By PyTorch's names ("exp_avg", "momentum_buffer", ...), "step" as an int64 tensor without dimensions; the others have
// the parameter's shape and share memory with the optimizer, kMasterWeight of MasterWeights too. Otherwise empty before
// the parameter's first step. SGD, Adam, AdamW, Adagrad, RMSprop and KeptOptimizers; throws c10::Error for others.
std::map<std::string, at::Tensor> OptimizerStateOf(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

// Replaces it; without tensors the parameter has none then, as before its first step (and MasterWeights' copy is what
// the parameter is). Throws c10::Error when a tensor is missing.
void SetOptimizerState(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                       const std::map<std::string, at::Tensor>& state);

// Whether the state of an optimizer of this class is known without KeptOptimizer.
bool HasKnownState(const torch::optim::Optimizer& optimizer);

}  // namespace cohort::trainer
