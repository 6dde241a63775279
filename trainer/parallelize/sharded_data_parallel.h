// ShardedDataParallel: gradients are reduced to the rank that owns the parameter's optimizer state (ZeRO stage 2),
// after FairScale's class of the same name.
//
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(model->parameters(), *world,
//   torch::optim::AdamOptions(1e-3)); ShardedDataParallel sharded(model, optimizer, *world);
//
// Like DistributedDataParallel, but each bucket is reduce-scattered: (n - 1) / n of its bytes leave a rank instead of
// twice that. After backward a rank has .grad of the parameters that it owns; the others' are undefined. Zero the
// gradients before each averaged backward pass. Under no_sync each rank accumulates whole gradients, which the next
// averaged pass reduces to their owners: between micro-batches they take as much memory as DDP's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"

namespace cohort::trainer {

// The options with the owners of `module`'s parameters.
DistributedDataParallelOptions WithOwners(const torch::nn::Module& module, const ZeroRedundancyOptimizerBase& optimizer,
                                          DistributedDataParallelOptions options);

template <typename ModuleType>
class ShardedDataParallel : public DistributedDataParallel<ModuleType> {
 public:
  // Collective over `group`, that of the optimizer. Errors: those of DistributedDataParallel.
  ShardedDataParallel(std::shared_ptr<ModuleType> module, const ZeroRedundancyOptimizerBase& optimizer,
                      comm::Communicator& group, DistributedDataParallelOptions options = {})
      : DistributedDataParallel<ModuleType>(module, group, WithOwners(*module, optimizer, std::move(options))) {}
};

}  // namespace cohort::trainer
