// FullyShardedDataParallel splits parameters, gradients and optimizer state among the ranks (ZeRO stage 3), after
// torch.distributed.fsdp.
//
//   struct Model : torch::nn::Module {
//     ... blocks.push_back(register_module("block0", std::make_shared<FullyShardedDataParallel<Block>>(
//             std::make_shared<Block>(), *world)));  // innermost first; forward() as before
//   };
//   auto model = std::make_shared<FullyShardedDataParallel<Model>>(std::make_shared<Model>(), *world);
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);  // steps this rank's shards
//   auto loss = model->forward(images).pow(2).mean();
//   loss.backward();              // shards' .grad are averages when this returns
//   model->clip_grad_norm_(1.0);  // by the norm over all ranks
//   optimizer.step();
//
// Each parameter is cut along its first dimension as torch.chunk does. Between steps it has this rank's rows only,
// maybe none, and so have its gradient and the optimizer's state.
//
// One unit is the parameters of a wrapped module without those of wrapped modules inside it. They are gathered together
// before its forward, freed after, and gathered again in backward. Over a 2-D DeviceMesh (rows replicate, columns
// shard) shards are replicated: HYBRID_SHARD.
//
// DistributedDataParallel around the outermost module, over the ranks that have equal shards, means the same
// (parallelize/replicated_shards.h). Around anything else that holds shards it is refused by name. fully_shard.h shards
// modules without a wrapper.
//
// If modules share a parameter, parameters() lists it twice. Give optimizers DistinctParameters(model->parameters())
// (distinct_parameters.h), or they step it twice.
//
// Every unit must run in every backward pass, on all ranks alike. Ranks that have different numbers of batches train
// under Join (join.h); without it the errors of the ranks that wait name it.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/base/tensors_of.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/parallel/fsdp/fsdp_stage.h"
#include "cohort/trainer/placement/placement.h"
#include "cohort/trainer/placement/sharded_module.h"
#include "cohort/trainer/transfer/join.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// While the guard lives, backward passes of the model accumulate whole gradients without reducing them.
class [[nodiscard]] FsdpNoSyncGuard {
 public:
  explicit FsdpNoSyncGuard(FsdpRoot& root) : root_(root), before_(root.sync()) { root_.set_sync(false); }
  ~FsdpNoSyncGuard() { root_.set_sync(before_); }
  FsdpNoSyncGuard(const FsdpNoSyncGuard&) = delete;
  FsdpNoSyncGuard& operator=(const FsdpNoSyncGuard&) = delete;

 private:
  FsdpRoot& root_;
  bool before_;
};

// `value` with its tensors changed by `change`. It is `value` itself where MapTensors (tensors_of.h) knows no tensors.
template <typename T, typename Change>
decltype(auto) WithTensors(const T& value, const Change& change) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return change(value);
  } else if constexpr (Mappable<T>) {
    return MapTensors(value, TensorMap{change});
  } else {
    return (value);
  }
}

class FullyShardedModule;

// Stands between PreForward and PostForward, and abandons the forward pass when an exception ends it.
class ForwardGuard {
 public:
  explicit ForwardGuard(FullyShardedModule& module) : module_(&module) {}
  ~ForwardGuard();
  ForwardGuard(const ForwardGuard&) = delete;
  ForwardGuard& operator=(const ForwardGuard&) = delete;
  void Dismiss() { module_ = nullptr; }

 private:
  FullyShardedModule* module_;
};

// The ranks that a module is sharded over.
struct FsdpRanks {
  comm::Communicator& world;      // all of them, replica by replica
  comm::Communicator* shard;      // those that share the parameters
  comm::Communicator* replicate;  // those that have the same shards as this rank; null: there are none
};
// The ranks of axis "shard" and, where there is one, "replicate", by name. Throws c10::Error, which says what to slice,
// for a mesh without "shard" or with further axes. They live as long as the mesh or a slice of it.
FsdpRanks FsdpRanksOf(DeviceMesh& mesh);

// The part of FullyShardedDataParallel that does not depend on the module's forward signature.
class FullyShardedModule : public ShardedModule, public Joinable {
 public:
  ~FullyShardedModule() override;

  // Forward calls these, which are FsdpRoot's. Collective; block. Throw DistributedError and c10::Error. Autocasting
  // has forgotten its casts of weights after PostForward.
  void PreForward();
  void PostForward(const std::vector<at::Tensor>& outputs);
  // Forward calls this instead of PostForward when the module has thrown. After that of the outermost module all
  // parameters are shards, so that an optimizer may step them. Throws nothing.
  void AbandonForward();
  at::Tensor CastInput(const at::Tensor& input) const;
  at::Tensor CastOutput(const at::Tensor& output) const;
  // Does all of these around `call`, which computes what forward does. Collective; blocks. Throws what they throw, and
  // what `call` throws. Units that it has left gathered are sharded by the next forward pass.
  template <typename Call, typename... Inputs>
  auto Run(const Call& call, const Inputs&... inputs) {
    PreForward();
    ForwardGuard guard(*this);
    const auto cast_input = [this](const at::Tensor& tensor) { return CastInput(tensor); };
    const auto cast_output = [this](const at::Tensor& tensor) { return CastOutput(tensor); };
    auto output = call(WithTensors(inputs, cast_input)...);
    PostForward(TensorsOf(output));
    guard.Dismiss();
    if constexpr (Mappable<decltype(output)>) {
      return WithTensors(output, cast_output);
    } else {
      return output;
    }
  }

  // The following are for the outermost module, after all wrapping. The first call of one, or of forward, settles which
  // module that is.
  //
  // Scales the shards' gradients so that the norm of all gradients together is at most max_norm. Returns the norm
  // before. All gradients are those of the whole model, also where tensor-parallel layers or stages have parts of it.
  // Collective over all ranks that share the model; blocks.
  at::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0);
  const torch::nn::Module& sharded_module() const override { return sharded_; }
  std::vector<ShardedParameter> sharded_parameters() override;
  std::vector<std::pair<std::string, at::Tensor>> unwrapped_buffers() const override;
  // Settles nothing: before the first forward pass parameters are shards.
  void Reshard() override {
    if (root_ != nullptr) root_->Reshard();
  }
  const comm::Communicator* replicas() override { return root().replicate_group(); }
  FsdpRoot& root();
  FsdpNoSyncGuard no_sync() { return FsdpNoSyncGuard(root()); }
  // For a stage of a pipeline, which then says when parameters and gradients move.
  Reducible& reducible() { return root().stage(); }

  // torch::save and torch::load of shards would be wrong silently. They throw c10::Error unless parameters are whole:
  // under SummonFullParams, or on one rank. Use SaveTrainingState and LoadTrainingState.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // Throws c10::Error, which names `call`, if parameters are shards.
  void RefuseShards(const char* call) const;

  // Replicates the shards over `group`, which outlives this, with the values of its rank 0. Collective over `group`;
  // blocks. Throws DistributedError kFailedPrecondition if its ranks have other shards. Throws c10::Error if ranks of
  // `group` share the shards, and for modules that were used or are replicated already.
  void ReplicateOver(comm::Communicator& group);
  int place() const override;
  int places() const override;

  // The group of all ranks. Throws c10::Error for shards that DistributedDataParallel replicates, which have none.
  comm::Communicator& join_group() override;
  void Shadow(int call, const JoinIteration& iteration) override;
  void AfterInputs() override { root().EndInputs(); }
  void AfterJoin(const JoinIteration& last) override;
  std::string NameOf(int call) const override;
  // Does nothing while there are no groups, maybe because they can't be made.
  void AbortGroups(const std::string& why) override {
    if (root_ != nullptr) root_->Abort(why);
  }

 protected:
  // Shards `module`'s parameters without those of wrapped modules inside. The communicators of `ranks` outlive this.
  // Parameters that a layer has cut, as tensor-parallel layers do, are cut further; their placements say so
  // (placement/placement_table.h). Collective when modules are synchronised; blocks.
  FullyShardedModule(torch::nn::Module& module, const FsdpRanks& ranks, const FullyShardedDataParallelOptions& options);
  void OnJoin() override;

 private:
  bool HasReplicasOf(const FullyShardedModule& inner) const;
  void RegisterPlacements(const std::vector<std::vector<int64_t>>& sizes);

  torch::nn::Module& sharded_;
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> alone_;  // NO_SHARD: shards among itself
  comm::Communicator* shard_;
  comm::Communicator* replicate_;
  bool replicates_within_ = false;  // ReplicateOver gave the modules inside the first replica's values, too
  FullyShardedDataParallelOptions options_;
  std::shared_ptr<FsdpUnit> unit_;
  std::vector<std::shared_ptr<const Placement>> placed_before_;  // by parameter of the unit; null: none
  std::shared_ptr<FsdpRoot> root_;                               // shared by all units of the model
};

// While the guard lives, all parameters of the outermost `module` are whole. Collective at both ends. With `writeback`,
// changes stay; all ranks must have changed the same. The destructor throws an error of writing back, such as missing
// memory, unless an exception is on its way already. The model must be wrapped again then, on all ranks.
class [[nodiscard]] SummonFullParams {
 public:
  explicit SummonFullParams(FullyShardedModule& module, bool writeback = true)
      : root_(module.root()), writeback_(writeback), exceptions_(std::uncaught_exceptions()) {
    root_.UnshardAll();
  }
  ~SummonFullParams() noexcept(false);
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;

 private:
  FsdpRoot& root_;
  bool writeback_;
  int exceptions_;  // on their way when this was made
};

// The FullyShardedModule of `module`: itself if it is a wrapper, or the one that fully_shard (fully_shard.h) made for
// it. Null for other modules.
FullyShardedModule* ShardsOf(torch::nn::Module& module);

template <typename ModuleType>
class FullyShardedDataParallel : public FullyShardedModule {
 public:
  // Shards over the ranks of `group`, which must outlive this.
  FullyShardedDataParallel(std::shared_ptr<ModuleType> module, comm::Communicator& group,
                           const FullyShardedDataParallelOptions& options = {})
      : FullyShardedModule(*module, FsdpRanks{group, &group, nullptr}, options), module_(std::move(module)) {
    register_module(kFsdpWrapped, module_);
  }
  // Shards over axis "shard" of the mesh, and replicates over axis "replicate" where it has one. A mesh with further
  // axes is refused: slice it, mesh.Slice({"replicate", "shard"}). The mesh, or what it was sliced from, and its world
  // must outlive this.
  FullyShardedDataParallel(std::shared_ptr<ModuleType> module, DeviceMesh& mesh,
                           const FullyShardedDataParallelOptions& options = {})
      : FullyShardedModule(*module, FsdpRanksOf(mesh), options), module_(std::move(module)) {
    register_module(kFsdpWrapped, module_);
  }

  // Calls the module's forward with whole parameters, by Run.
  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    return Run([this](const auto&... given) { return module_->forward(given...); }, inputs...);
  }
  const std::shared_ptr<ModuleType>& module() const { return module_; }

 private:
  std::shared_ptr<ModuleType> module_;
};

}  // namespace cohort::trainer
