#include "cohort/trainer/parallelize/sharded_data_parallel.h"

#include "torch/torch.h"

namespace cohort::trainer {

DistributedDataParallelOptions WithOwners(const torch::nn::Module& module, const ZeroRedundancyOptimizerBase& optimizer,
                                          DistributedDataParallelOptions options) {
  TORCH_CHECK(!options.gradient_as_bucket_view,
              "ShardedDataParallel: gradient_as_bucket_view is of no use, because buckets are freed when they are "
              "reduced");
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) options.owners[parameter.unsafeGetTensorImpl()] = optimizer.OwnerOf(parameter);
  }
  return options;
}

}  // namespace cohort::trainer
