// Checkpoints of a model and its optimizer, however they are split. DistributedDataParallel, ZeRO and
// FullyShardedDataParallel load each other's checkpoints, on any number of ranks.
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
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/placement/partitioned_optimizer.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"

namespace cohort::trainer {

// Which of the ranks that have the same part of a parameter's optimizer state this one is, as `replica` and `replicas`
// of CheckpointTensor.
struct StateReplica {
  int replica = 0;
  int replicas = 1;
};

// Lists the boxes of each tensor that this rank has. It refers to the model and the optimizer, which must outlive
// it.
struct TrainingState {
  std::vector<CheckpointTensor> parameters;  // named as in the module; data is the parameter itself
  std::vector<CheckpointTensor> buffers;     // saved by the first rank, loaded by all
  // The other names of tensors that modules share, each with the name above. ExportSafetensors writes them too.
  std::map<std::string, std::string> aliases;
  ShardedModule* shards = nullptr;                  // has the parameters, which may be gathered at the time
  torch::optim::Optimizer* optimizer = nullptr;     // has the state of this rank's parameters
  std::vector<std::optional<StateReplica>> states;  // by parameter; none where this rank has no state of it
  // The options of its groups count. It steps `optimizer`, or is `optimizer` itself. All ranks agree on it.
  torch::optim::Optimizer* groups = nullptr;
};

// The state of a model that all ranks of `group` replicate: DistributedDataParallel, or one rank alone. A stage of a
// pipeline is such a model, of the ranks that have it; the world saves and loads all stages together. This and the next
// throw c10::Error, which names the module, if it or a module in it is sharded. All throw it for an optimizer of
// parameters that the module has not, and for one that can't be kept (kept_optimizer.h).
TrainingState StateOf(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                      const comm::Communicator& group);
// The state of an optimizer that keeps each parameter's state at its owner.
TrainingState StateOf(const torch::nn::Module& module, PartitionedOptimizer& optimizer,
                      const comm::Communicator& group);
// The state of shards. `optimizer` must step module->parameters().
TrainingState StateOf(ShardedModule& module, torch::optim::Optimizer& optimizer);
// The same where layers have cut parameters over other axes, such as tensor-parallel ones: `mesh` has the axes over
// which the ranks have this model, those of the shards and replicas among them. Placements say what each rank has of a
// parameter (placement/placement_table.h).
TrainingState StateOf(const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh);
TrainingState StateOf(ShardedModule& module, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh);
// The same for an optimizer over axis "replicate" of the mesh.
TrainingState StateOf(const torch::nn::Module& module, PartitionedOptimizer& optimizer, const DeviceMesh& mesh);

// Returns this rank's part of the state, as SaveCheckpoint takes it. All ranks call it alike, because it gives modules
// their shards back (ShardedModule::Reshard).
std::vector<CheckpointTensor> CheckpointTensorsOf(const TrainingState& state);
// Returns `values` and the state's values besides tensors, under the keys "model.aliases" and "optimizer.param_groups".
// Throws c10::Error if `values` has one of them. Local.
CheckpointValues CheckpointValuesOf(const TrainingState& state, CheckpointValues values);
// Saves the state as `directory`. Collective; blocks. A rank that is done waits up to `timeout` for the others. Throws
// as SaveCheckpoint, and on every rank an error that one rank met while it listed its part. AsyncCheckpointer saves
// beside the training.
void SaveTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                       const CheckpointValues& values, std::chrono::nanoseconds timeout = kTogetherTimeout);
// Restores parameters, buffers and the optimizer, and returns the values. Collective; blocks, as SaveTrainingState.
// - Types may differ if nothing is lost. Float32 parameters take the copies that MasterWeights had of smaller ones.
// - MasterWeights' copies are filled from float32 parameters. Buffers are converted.
// - Parameters that had no optimizer state then have none afterwards.
// - Groups get the options that they had, as with PyTorch's load_state_dict. Set others afterwards.
// - A shared tensor is found under any of its names. If there are several, the one under the name in `state` is taken.
//
// Ranks may have parts of the model, such as stages: together they have all of it.
//
// Throws on every rank the error that one of them met (LoadTensors). Parameters are undefined then. A checkpoint of
// other parameters or buffers is refused, as PyTorch's strict load_state_dict does. The error names the first one that
// the checkpoint lacks and the first one that the model lacks.
CheckpointValues LoadTrainingState(comm::Communicator& world, const std::string& directory, const TrainingState& state,
                                   std::chrono::nanoseconds timeout = kTogetherTimeout);

struct LoadedState {
  std::string directory;
  CheckpointValues values;
};
// Loads the newest of `root`'s checkpoints that all ranks can read. Returns nothing if there is none. Rank 0 lists
// them. If one rank finds a checkpoint damaged or missing, all ranks turn to the one before. `refused` then receives
// the reason, on every rank alike. Collective; blocks.
//
// Throws DistributedError on every rank when rank 0 cannot list them, or a rank cannot read for another reason
// (LoadTrainingState). It also throws when there are checkpoints but none can be read. Parameters are undefined then.
std::optional<LoadedState> LoadLatestTrainingState(comm::Communicator& world, const std::string& root,
                                                   const TrainingState& state,
                                                   const std::function<void(const std::string&)>& refused = nullptr,
                                                   std::chrono::nanoseconds timeout = kTogetherTimeout);

}  // namespace cohort::trainer
