// Looking into autograd's graph: which leaves a backward pass will reach.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

struct BackwardReach {
  std::vector<bool> leaves;  // for each, whether a backward pass can reach it
  // It goes through a checkpointed function, whose graph is made only then and may reach others.
  bool checkpoints = false;
};

// Returns the reach of a backward pass from `outputs`. The leaves require grad.
BackwardReach ReachOf(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves);

}  // namespace cohort::trainer
