// ShardedDataParallel, after FairScale's class: gradients are reduced to the rank that owns the parameter's optimizer
// state (ZeRO stage 2).
//
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(model->parameters(), *world,
//   torch::optim::AdamOptions(1e-3)); ShardedDataParallel sharded(model, optimizer, *world);
//
// It works like DistributedDataParallel, but reduce-scatters each bucket. A rank then sends (n - 1) / n of the bucket's
// bytes instead of twice that. After backward a rank has .grad of the parameters that it owns; the others are
// undefined. Zero the gradients before each averaged backward pass. Under no_sync each rank accumulates whole
// gradients. The next averaged pass reduces them to their owners. Between micro-batches they take as much memory as
// DDP's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/placement/placement.h"

namespace cohort::trainer {

// Returns `options` with the owners of `module`'s parameters.
DistributedDataParallelOptions WithOwners(const torch::nn::Module& module, const ZeroRedundancyOptimizerBase& optimizer,
                                          DistributedDataParallelOptions options);

// While it lives, the table of placements says which rank of `group` has the gradient of each parameter, so that norms,
// clipping and scalers count it once. Afterwards the table has what it had.
class OwnedGradients {
 public:
  OwnedGradients(const torch::nn::Module& module, const ZeroRedundancyOptimizerBase& optimizer,
                 comm::Communicator& group);
  ~OwnedGradients();
  OwnedGradients(const OwnedGradients&) = delete;
  OwnedGradients& operator=(const OwnedGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, std::shared_ptr<const Placement>>> before_;  // null: none
};

template <typename ModuleType>
class ShardedDataParallel : public DistributedDataParallel<ModuleType> {
 public:
  // Collective over `group`, which must be the optimizer's. Errors are those of DistributedDataParallel.
  ShardedDataParallel(std::shared_ptr<ModuleType> module, const ZeroRedundancyOptimizerBase& optimizer,
                      comm::Communicator& group, DistributedDataParallelOptions options = {})
      : DistributedDataParallel<ModuleType>(module, group, WithOwners(*module, optimizer, std::move(options))),
        gradients_(*module, optimizer, group) {}

 private:
  OwnedGradients gradients_;
};

}  // namespace cohort::trainer
