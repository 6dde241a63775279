// parallelize lays a model out on a mesh in one call, after PyTorch's parallelize_module and fully_shard: first its
// layers over axis "tensor", then what is left over the data axes.
//
//   const auto mesh = init_device_mesh(job.world(), "replicate=2,shard=2,tensor=2");
//   Parallelized<Model> model = parallelize(std::make_shared<Model>(), *mesh,
//                                           {.tensor = {{"blocks.*.up", ColwiseParallel()},
//                                                       {"blocks.*.down", RowwiseParallel()}},
//                                            .units = {"blocks.*"}});
//   torch::optim::AdamW optimizer(model.parameters(), 1e-3);
//   TrainingState state = model.state(optimizer);
//   criterion(model.forward(inputs), targets).backward();
//   model.clip_grad_norm_(1.0);
//
//   axis        what it does
//   tensor      the plan's layers are cut (tensor_plan.h)
//   shard       FullyShardedDataParallel; axis replicate holds copies of the shards
//   replicate   without shards: DistributedDataParallel
//
// The ranks of replicate and shard share the rows of a batch. Ranks along tensor must take the same rows: take them by
// data_rank() of data_ranks(). examples/ports/port_parallelize.cc is a whole program.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallelize/tensor_plan.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/training_state.h"

namespace cohort::trainer {

struct ParallelizePlan {
  TensorPlan tensor = {};              // empty: no layer is cut, or the model has cut its own
  TensorAxisOptions tensor_axis = {};  // sequence parallelism, chunks
  // Patterns of names of modules that are gathered together: Shardables, and elements of a Sequential (fully_shard.h).
  // Other parameters form the outermost unit. For meshes with axis "shard".
  std::vector<std::string> units = {};
  FullyShardedDataParallelOptions fsdp = {};
  DistributedDataParallelOptions ddp = {};
};

// The part of parallelize that does not depend on the model's type: compares the ranks, cuts layers and shards the
// units. Returns the data axes of the mesh, or null where there are none.
std::unique_ptr<DeviceMesh> PrepareOnMesh(torch::nn::Module& model, DeviceMesh& mesh, const ParallelizePlan& plan);

// A model on a mesh, which must outlive it.
template <typename ModuleType>
class Parallelized {
 public:
  Parallelized(std::shared_ptr<ModuleType> model, DeviceMesh& mesh, const ParallelizePlan& plan)
      : mesh_(mesh), data_(PrepareOnMesh(*model, mesh, plan)), model_(std::move(model)) {
    if (mesh.has(kShardAxis)) {
      fsdp_ = std::make_shared<FullyShardedDataParallel<ModuleType>>(model_, *data_, plan.fsdp);
    } else if (data_ != nullptr) {
      ddp_ = std::make_shared<DistributedDataParallel<ModuleType>>(model_, data_->world(), plan.ddp);
    }
  }

  // Collective as the wrapper's forward; blocks. Throws what it throws.
  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    if (fsdp_ != nullptr) return fsdp_->forward(inputs...);
    return ddp_ != nullptr ? ddp_->forward(inputs...) : model_->forward(inputs...);
  }
  // Whether backward passes average gradients; otherwise they accumulate. True unless set. Local.
  void set_sync(bool sync) {
    if (fsdp_ != nullptr) fsdp_->root().set_sync(sync);
    if (ddp_ != nullptr) ddp_->set_sync(sync);
  }
  // This rank's parts of the parameters, for optimizers. One that modules share is listed once.
  std::vector<at::Tensor> parameters() const { return DistinctParameters(model_->parameters()); }
  // trainer::clip_grad_norm_ over the mesh. Collective; blocks.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0) {
    return trainer::clip_grad_norm_(parameters(), max_norm, norm_type, &mesh_);
  }
  // The state that checkpoints keep. It refers to this model and to `optimizer`, which must outlive it.
  TrainingState state(torch::optim::Optimizer& optimizer) {
    return fsdp_ != nullptr ? StateOf(*fsdp_, optimizer, mesh_) : StateOf(*model_, optimizer, mesh_);
  }
  const std::shared_ptr<ModuleType>& module() const { return model_; }
  // The number of ranks that share the rows of a batch: those of replicate and shard. 1 on a mesh without these axes.
  int data_ranks() const { return data_ == nullptr ? 1 : data_->world().size(); }
  // This rank's place among them. Ranks along tensor have the same place, and must take the same rows: give a sampler
  // (data/distributed_sampler.h) both numbers. Local.
  int data_rank() const { return data_ == nullptr ? 0 : data_->world().rank(); }

 private:
  DeviceMesh& mesh_;
  std::unique_ptr<DeviceMesh> data_;
  std::shared_ptr<ModuleType> model_;
  std::shared_ptr<DistributedDataParallel<ModuleType>> ddp_;
  std::shared_ptr<FullyShardedDataParallel<ModuleType>> fsdp_;
};

// Lays `model` out on `mesh`, a mesh of the axes above, which must outlive it. Before anything is changed, the ranks
// compare mesh, model and plan, and those along "tensor" also torch's seed and the values of the parameters. Collective
// over the mesh; blocks. Throws DistributedError (kFailedPrecondition) on every rank, which names what differs. Throws
// c10::Error for other axes of several ranks, for a plan that does not fit the model (CutLayers), and as the wrappers
// do.
template <typename ModuleType>
Parallelized<ModuleType> parallelize(std::shared_ptr<ModuleType> model, DeviceMesh& mesh,
                                     const ParallelizePlan& plan = {}) {
  return Parallelized<ModuleType>(std::move(model), mesh, plan);
}

}  // namespace cohort::trainer
