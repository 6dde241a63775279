// PartitionedOptimizer: an optimizer whose state is split among ranks by whole parameters, as checkpoints, mixed
// precision and memory accounting see it. ZeroRedundancyOptimizer is one.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// A torch optimizer of all parameters, of which each is stepped by one rank, its owner.
class PartitionedOptimizer : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;

  // The group rank that owns a parameter. Throws c10::Error for a parameter that is not of this optimizer.
  virtual int OwnerOf(const at::Tensor& parameter) const = 0;
  // The optimizer of this rank's parameters.
  virtual torch::optim::Optimizer& local_optimizer() = 0;
  // Bytes kept beside the parameters to gather them.
  virtual int64_t buffer_bytes() const = 0;
};

}  // namespace cohort::trainer
