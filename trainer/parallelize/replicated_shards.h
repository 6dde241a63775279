// DistributedDataParallel around FullyShardedDataParallel: shards that are replicated.
#pragma once

#include <memory>
#include <utility>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"

namespace cohort::trainer {

// Throws c10::Error for options that say how gradients are reduced: the shards are reduced by
// FullyShardedDataParallel.
void RefuseOptionsOfReplicatedShards(const DistributedDataParallelOptions& options);

// Shards that are replicated: FullyShardedDataParallel over one group, this over another that crosses it. It does what
// a DeviceMesh of (replicas, shards) does: gradients are reduce-scattered among the shards and all-reduced among the
// replicas, once. Options that say how DistributedDataParallel reduces are refused.
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
  const std::shared_ptr<FullyShardedDataParallel<ModuleType>>& module() const { return module_; }

 private:
  std::shared_ptr<FullyShardedDataParallel<ModuleType>> module_;
};

}  // namespace cohort::trainer
