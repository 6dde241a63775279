#include "cohort/trainer/parallelize/sharded_data_parallel.h"

#include <set>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/placement_table.h"
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

OwnedGradients::OwnedGradients(const torch::nn::Module& module, const ZeroRedundancyOptimizerBase& optimizer,
                               comm::Communicator& group) {
  const Axis axis = {.name = kReplicateAxis, .size = group.size(), .rank = group.rank(), .group = &group};
  std::set<const void*> seen, stepped;
  for (const auto& param_group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : param_group.params()) stepped.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    // Frozen ones too: a stage without others adds up norms over the same ranks as its neighbours.
    if (!parameter.requires_grad() && !stepped.contains(parameter.unsafeGetTensorImpl())) continue;
    Placement placement = *Placements().OrWhole(parameter);
    ThrowUnlessOk(placement.Reduced(axis, optimizer.OwnerOf(parameter)), "ShardedDataParallel: " + item.key());
    before_.emplace_back(parameter, Placements().Of(parameter));
    Placements().Add(parameter, std::move(placement));
  }
}

OwnedGradients::~OwnedGradients() {
  for (const auto& [parameter, placement] : before_) {
    if (placement == nullptr) {
      Placements().Remove(parameter);
    } else {
      Placements().Add(parameter, *placement);
    }
  }
}

}  // namespace cohort::trainer
