// Checkpoints of a model and its optimizer, whatever splits them: what DistributedDataParallel, ZeRO or
// FullyShardedDataParallel saved on some ranks, any of them loads on others.
//
//   TrainingState state = StateOf(*model, optimizer, *world);
//   SaveTrainingState(*world, "checkpoints/step-00000100", state, {{"step", "100"}});
//   ...
//   auto resumed = LoadLatestTrainingState(*world, "checkpoints", state);  // newest first, damaged ones skipped
//
// Tensors are named "model.<parameter>" and "optimizer.<parameter>.<state>" by PyTorch's names. The optimizer's param
// groups (learning rates, ...) are kept with rank 0's values.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/placement/partitioned_optimizer.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Which elements of which tensors this rank has. Refers to the model and the optimizer, which must outlive it.
struct TrainingState {
  std::vector<CheckpointTensor> parameters;  // named as in the module; data is the parameter itself
  std::vector<CheckpointTensor> buffers;     // saved by the first rank, loaded by all
  // The other names of tensors that modules share, each with the one above. ExportSafetensors writes them, too.
  std::map<std::string, std::string> aliases;
  ShardedModule* shards = nullptr;               // that has the parameters, which may be gathered at the time
  torch::optim::Optimizer* optimizer = nullptr;  // that has the state of this rank's parameters
  // By parameter: whether this rank has its optimizer state, and whether it alone does.
  std::vector<bool> has_state;
  bool owns_state = false;
  // Whose groups' options count: what steps `optimizer`, or itself. On all ranks alike.
  torch::optim::Optimizer* groups = nullptr;
};

// Replicated on all ranks of `group`: DistributedDataParallel, or one rank alone. This and the next throw c10::Error,
// which names it, for a module that is sharded or has one in it.
TrainingState StateOf(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                      const comm::Communicator& group);
// The optimizer's state at its owners.
TrainingState StateOf(const torch::nn::Module& module, PartitionedOptimizer& optimizer,
                      const comm::Communicator& group);
// Shards. `optimizer` is of module->parameters().
TrainingState StateOf(ShardedModule& module, torch::optim::Optimizer& optimizer);

// What this rank saves of it, as SaveCheckpoint takes it. On all ranks alike, since it gives modules their shards back
// (ShardedModule::Reshard).
std::vector<CheckpointTensor> CheckpointTensorsOf(const comm::Communicator& world, const TrainingState& state);
// `values` and what it has besides tensors, under the keys "model.aliases" and "optimizer.param_groups". Throws
// c10::Error where `values` has one of them. Local.
CheckpointValues CheckpointValuesOf(const TrainingState& state, CheckpointValues values);
// Collective; blocks; errors: those of SaveCheckpoint, and on every rank what one met while it listed its part. A rank
// that is done waits up to `timeout` for the others. AsyncCheckpointer does it beside the training.
void SaveTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                       const CheckpointValues& values, std::chrono::nanoseconds timeout = kTogetherTimeout);
// Parameters, buffers and the optimizer become what they were. Types may differ where nothing is lost: what has float32
// parameters takes the copies that MasterWeights had of smaller ones, and MasterWeights' copies are filled from float32
// parameters. Buffers are converted. Parameters that had no optimizer state then have none
// afterwards, and groups have the options that they had (as PyTorch's load_state_dict; set others afterwards).
// Collective; blocks, as SaveTrainingState. Returns the values. Throws on every rank what one of them met
// (LoadTensors); parameters are undefined then. A checkpoint of other parameters or buffers is refused by the names of
// the first that it lacks and of the first that the model lacks (as PyTorch's load_state_dict, strict). What modules
// share here is found under any of its names; of several tensors the one under the name in `state` is taken.
CheckpointValues LoadTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                                   std::chrono::nanoseconds timeout = kTogetherTimeout);

struct LoadedState {
  std::string directory;
  CheckpointValues values;
};
// Loads the newest of `root`'s checkpoints that all ranks can read; nothing where there is none. Rank 0 says which
// there are. What one rank finds damaged or doesn't find, all ranks leave for the one before, and `refused` is told
// why, on every rank alike. Collective; blocks. Throws DistributedError on every rank when rank 0 can't look, when a
// rank can't read for another reason (LoadTrainingState), and when there are checkpoints but none can be read:
// parameters are undefined then.
std::optional<LoadedState> LoadLatestTrainingState(comm::Communicator& world, const std::string& root,
                                                   const TrainingState& state,
                                                   const std::function<void(const std::string&)>& refused = nullptr,
                                                   std::chrono::nanoseconds timeout = kTogetherTimeout);

}  // namespace cohort::trainer
