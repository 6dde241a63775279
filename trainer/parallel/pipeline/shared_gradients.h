// Weights that stages share: equal copies, and the sum of their gradients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// One weight with a copy on each of one or two ranks. Ranks without a copy have neither tensors nor group.
class SharedGradient {
 public:
  // This rank's copies, in the order of stages: two if both stages are on it. `group`: the two ranks, the first copy's
  // before; null for one rank.
  SharedGradient(std::string name, std::vector<at::Tensor> copies, std::unique_ptr<comm::Communicator> group)
      : name_(std::move(name)), copies_(std::move(copies)), group_(std::move(group)) {}
  // Makes the second copy equal to the first. Collective over the group; blocks.
  void Broadcast();
  // Begin, the passes of a step, Sum, End. Begin puts aside what earlier steps have left in .grad, which is a sum
  // already, and End adds it again. Both are local.
  void Begin();
  // Makes both copies' gradients their sum, in that order. Collective over the group; blocks.
  void Sum();
  void End();

 private:
  std::string name_;
  std::vector<at::Tensor> copies_;
  std::vector<at::Tensor> before_;  // by copy: its gradient before the step; undefined if it had none
  std::unique_ptr<comm::Communicator> group_;
};

}  // namespace cohort::trainer
