#include "cohort/trainer/parallelize/replicated_shards.h"

#include "torch/torch.h"

namespace cohort::trainer {

void RefuseOptionsOfReplicatedShards(const DistributedDataParallelOptions& options) {
  TORCH_CHECK(!options.find_unused_parameters && !options.static_graph && !options.gradient_as_bucket_view &&
                  options.parts.empty() && options.owners.empty() && options.check_replicas_every == 0,
              "DistributedDataParallel: around FullyShardedDataParallel, which reduces the gradients itself, there is "
              "no find_unused_parameters, static_graph, gradient_as_bucket_view, check_replicas_every or parts");
}

}  // namespace cohort::trainer
