// DistributedDataParallel around FullyShardedDataParallel: replicated shards.
#pragma once

#include <memory>
#include <utility>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"

namespace cohort::trainer {

// Throws c10::Error for options that say how gradients are reduced: FullyShardedDataParallel reduces the shards.
void RefuseOptionsOfReplicatedShards(const DistributedDataParallelOptions& options);

// Replicates shards: FullyShardedDataParallel runs over one group, this wrapper over another that crosses it. The
// result equals a DeviceMesh of (replicas, shards). Gradients are reduce-scattered among the shards and all-reduced
// among the replicas, once. It refuses options that say how DistributedDataParallel reduces.
template <typename ModuleType>
class DistributedDataParallel<FullyShardedDataParallel<ModuleType>> {
 public:
  DistributedDataParallel(std::shared_ptr<FullyShardedDataParallel<ModuleType>> module, comm::Communicator& group,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)) {
    RefuseOptionsOfReplicatedShards(options);
    module_->ReplicateOver(group);
  }

  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    return module_->forward(inputs...);
  }
  FsdpNoSyncGuard no_sync() { return module_->no_sync(); }
  Reducible& reducible() { return module_->reducible(); }
  const std::shared_ptr<FullyShardedDataParallel<ModuleType>>& module() const { return module_; }

 private:
  std::shared_ptr<FullyShardedDataParallel<ModuleType>> module_;
};

}  // namespace cohort::trainer
