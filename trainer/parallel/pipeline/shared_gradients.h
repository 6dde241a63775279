// Weights that stages share: equal copies, and the sum of their gradients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// One weight with copies on one rank or on several. Ranks without a copy have none of these.
class SharedGradient {
 public:
  // This rank's copies, in the order of holders. A tensor that several of its stages have is one copy. `group`: the
  // ranks with copies, the first holder's before the others; null for one rank.
  SharedGradient(std::string name, const std::vector<at::Tensor>& copies, std::unique_ptr<comm::Communicator> group);
  // Makes all copies equal to the first holder's. Collective over the group; blocks.
  void Broadcast();
  // Begin, the passes of a step, Sum, End. Begin puts aside what earlier steps have left in .grad, which is a sum
  // already, and End adds it again. Both are local.
  void Begin();
  // Makes all copies' gradients their sum: of those of a rank, then of the ranks. Collective over the group; blocks.
  void Sum();
  void End();
  // Fails the group here and on the other ranks.
  void Abort(const std::string& why);

 private:
  // Without a gradient: adapters train instead. It is so on both ranks.
  bool frozen() const { return !copies_.front().requires_grad(); }

  std::string name_;
  std::vector<at::Tensor> copies_;
  std::vector<at::Tensor> before_;  // by copy: its gradient before the step; undefined if it had none
  std::unique_ptr<comm::Communicator> group_;
};

}  // namespace cohort::trainer
