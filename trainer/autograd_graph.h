// Looking into autograd's graph: which leaves a backward pass will reach.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// For each of `leaves`, whether a backward pass from `outputs` can reach it. The leaves require grad.
std::vector<bool> ReachedLeaves(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves);

}  // namespace cohort::trainer
