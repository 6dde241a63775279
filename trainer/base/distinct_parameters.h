// Each parameter once, as Python's Module.parameters() gives them: C++'s lists one that two modules share twice, and
// what works through such a list would scale, step or split it twice.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// The parameters in their order, those that were there before left out.
std::vector<at::Tensor> DistinctParameters(const std::vector<at::Tensor>& parameters);

// The same of all groups together: a parameter stays in the first group that has it.
std::vector<torch::optim::OptimizerParamGroup> DistinctParameters(
    std::vector<torch::optim::OptimizerParamGroup> groups);

}  // namespace cohort::trainer
