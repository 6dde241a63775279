// PartitionedOptimizer: an optimizer whose state is split among ranks by whole parameters. Checkpoints, mixed precision
// and memory accounting use this interface. ZeroRedundancyOptimizer implements it.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// A torch optimizer of all parameters. One rank, the owner, steps each parameter.
class PartitionedOptimizer : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;

  // Returns the group rank that owns a parameter. Throws c10::Error for a parameter of another optimizer.
  virtual int OwnerOf(const at::Tensor& parameter) const = 0;
  // Returns the optimizer of this rank's parameters.
  virtual torch::optim::Optimizer& local_optimizer() = 0;
  // Returns the bytes kept beside the parameters to gather them.
  virtual int64_t buffer_bytes() const = 0;
};

}  // namespace cohort::trainer
