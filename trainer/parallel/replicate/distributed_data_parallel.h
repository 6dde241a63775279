// DistributedDataParallel: data-parallel training of a libtorch module, after torch.nn.parallel.
//
//   auto model = std::make_shared<Net>();
//   DistributedDataParallel ddp(model, *communicator);
//   auto loss = torch::nll_loss(ddp.forward(images), labels);
//   loss.backward();    // gradients are averaged over the ranks when this returns
//   optimizer.step();   // the same step on every rank
//
// A module whose parts sit on several devices of the rank (device groups) names them in
// DistributedDataParallelOptions::parts; each device index then has buckets and a communicator of its own.
//
// Ranks that have different numbers of batches train under Join (join.h); without it the errors of those that wait name
// it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/base/tensors_of.h"
#include "cohort/trainer/parallel/replicate/comm_hook.h"
#include "cohort/trainer/parallel/replicate/gradient_buckets.h"
#include "cohort/trainer/parallel/replicate/reducer.h"
#include "cohort/trainer/transfer/join.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// A submodule and the device that it sits on. The caller moves it there (Module::to).
struct ModulePart {
  torch::nn::Module* module = nullptr;
  LocalDevice device;
};

struct DistributedDataParallelOptions {
  BucketLimits buckets;  // bucket_cap_mb and the first bucket's smaller limit
  // Broadcast rank 0's buffers before each synchronised forward pass in training mode.
  bool broadcast_buffers = true;
  // .grad is a view of a bucket: saves a copy of every gradient and its memory.
  bool gradient_as_bucket_view = false;
  // Parameters that the loss doesn't depend on are allowed; they are looked for in every iteration, by walking the
  // graph. What no rank used keeps its .grad. What checkpointed functions use can't be seen in it: with one, the rest
  // counts as unused at the end of the backward pass only.
  bool find_unused_parameters = false;
  // The graph is the same in every iteration: unused parameters are learnt in the first, and parameters may get
  // several gradients in a backward pass (checkpointed functions).
  bool static_graph = false;
  // Which part of the module sits on which device; parameters in no part belong to device index 0.
  std::vector<ModulePart> parts;
  // ShardedDataParallel's: the rank that a parameter's gradient goes to, by tensor implementation. Empty: to all.
  std::map<const void*, int> owners = {};
};

// Everything of DDP that does not depend on the module's forward signature.
class DataParallelState : public Joinable {
 public:
  // Collective over `group` (which must outlive this): checks that all ranks have the same parameters, gives everyone
  // rank 0's parameters and buffers, and registers the hooks. Throws DistributedError (kFailedPrecondition names the
  // first parameter that differs) and c10::Error. The module's parameters and buffers stay those of this time; their
  // values may be set anew.
  DataParallelState(torch::nn::Module& module, comm::Communicator& group, DistributedDataParallelOptions options);

  // By forward, on the thread that calls it, in the same order on all ranks. The first ends what the last backward pass
  // left, and is collective and blocks where it rebuilds the buckets (once), broadcasts buffers, or runs under Join;
  // else local. Throws DistributedError: a parameter had no gradient in the last pass, or a rank has failed.
  void BeforeForward(bool training);
  // The next backward pass averages, if this one is to (not under no_sync or NoGradGuard): its collectives begin in
  // autograd's hooks. `searched`: `outputs` are all tensors of the result. Local. Throws c10::Error where they must be
  // and may not be.
  void AfterForward(const std::vector<at::Tensor>& outputs, bool searched = true);
  // Buckets are reduced by `hook` from now on. Before the first backward pass, on all ranks. Throws c10::Error for
  // null, a second hook, and where gradients go to owners.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { reducer_->RegisterCommHook(std::move(hook)); }
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  const Reducer& reducer() const { return *reducer_; }

  comm::Communicator& join_group() override { return group_; }
  void Shadow(int call, const JoinIteration& iteration) override;
  void AfterInputs() override { reducer_->PrepareForward(/*averages=*/false); }
  void AfterJoin(const JoinIteration& last) override;
  std::string NameOf(int call) const override;
  void AbortGroups(const std::string& why) override { reducer_->Abort(why); }

 private:
  // For what is not gradients. The user's group is left to the user, also when this rank's loop under Join fails.
  comm::Communicator& own_group() { return *device_groups_.front(); }
  void RefuseShards() const;
  void CheckSameParameters();

  comm::Communicator& group_;
  DistributedDataParallelOptions options_;
  torch::nn::Module& module_;
  std::vector<std::unique_ptr<comm::Communicator>> device_groups_;  // by device index
  std::unique_ptr<Reducer> reducer_;
  std::vector<at::Tensor> buffers_;  // of the module, which takes long to ask for them
  bool sync_ = true;
  int divisor_ = 1;
};

// Of forward passes while it lives, backward passes accumulate gradients without averaging them; the first that
// averages does so with the accumulated ones. (PyTorch's `with ddp.no_sync():`.)
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(DataParallelState& state) : state_(state), before_(state.sync()) { state_.set_sync(false); }
  ~NoSyncGuard() { state_.set_sync(before_); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DataParallelState& state_;
  bool before_;
};

template <typename ModuleType>
class DistributedDataParallel : public DataParallelState {
 public:
  // Collective over `group`, which must outlive this; blocks. Throws as DataParallelState's constructor.
  DistributedDataParallel(std::shared_ptr<ModuleType> module, comm::Communicator& group,
                          DistributedDataParallelOptions options = {})
      : DataParallelState(*module, group, std::move(options)), module_(std::move(module)) {}

  // The module's forward, on all ranks alike where gradients are averaged; throws what it throws, and what
  // BeforeForward and AfterForward do. Where autograd records and outside no_sync, the next backward pass averages the
  // gradients: one, a second one of the same graph is an error. Looking for unused parameters needs to know the tensors
  // of the result: results of a type without AppendTensors (tensors_of.h) are refused then.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    BeforeForward(module_->is_training());
    auto output = module_->forward(std::forward<Inputs>(inputs)...);
    AfterForward(TensorsOf(output), HasTensors<decltype(output)>);
    return output;
  }
  NoSyncGuard no_sync() { return NoSyncGuard(*this); }

  const std::shared_ptr<ModuleType>& module() const { return module_; }

 private:
  std::shared_ptr<ModuleType> module_;
};

}  // namespace cohort::trainer
