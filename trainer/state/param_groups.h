// The options of an optimizer's groups (learning rate, betas, ...) as text, for checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Returns the "param_groups" of PyTorch's state_dict as JSON. Each group has its options by PyTorch's names ("lr",
// "betas", ...) and the number of its parameters as "params". Numbers that JSON lacks are "NaN", "Infinity" or
// "-Infinity". It knows SGD, Adam, AdamW, Adagrad, RMSprop and KeptOptimizers, and the optimizers that wrap them.
// Throws c10::Error for others.
std::string ParamGroupsText(torch::optim::Optimizer& optimizer);

// Whether options of this class are known without KeptOptimizer. Those of derived classes are not: members of their own
// would be lost.
bool HasKnownOptions(torch::optim::OptimizerOptions& options);

// The parameters of all groups in what ParamGroupsText gave. 0 for other texts.
int64_t ParametersIn(const std::string& text);

// Options for the optimizer's groups, one for each, from what ParamGroupsText gave. Throws c10::Error, as PyTorch's
// load_state_dict does, when the numbers of groups or of a group's parameters differ, and when options are missing, as
// where those of Adam are for SGD. Without `of_same_parameters` groups may have other numbers of parameters, because
// the text is of a rank with another part of the model. (Adam's and AdamW's have the same names, and are taken for each
// other's.)
std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> ParamGroupOptions(torch::optim::Optimizer& optimizer,
                                                                               const std::string& text,
                                                                               bool of_same_parameters = true);

}  // namespace cohort::trainer
