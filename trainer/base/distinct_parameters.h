// Lists each parameter once, as Python's Module.parameters() does. C++ lists a parameter twice if two modules share it,
// and code that walks such a list would scale, step or split it twice.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Returns the parameters in their order without repetitions.
std::vector<at::Tensor> DistinctParameters(const std::vector<at::Tensor>& parameters);

// As above, for all groups together: a parameter stays in the first group that has it.
std::vector<torch::optim::OptimizerParamGroup> DistinctParameters(
    std::vector<torch::optim::OptimizerParamGroup> groups);

}  // namespace cohort::trainer
