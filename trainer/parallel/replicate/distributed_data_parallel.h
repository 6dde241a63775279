// DistributedDataParallel trains a libtorch module data-parallel, after torch.nn.parallel.
//
//   auto model = std::make_shared<Net>();
//   DistributedDataParallel ddp(model, *communicator);
//   auto loss = torch::nll_loss(ddp.forward(images), labels);
//   loss.backward();    // gradients are averaged over the ranks when this returns
//   optimizer.step();   // the same step on every rank
//
// If parts of a module sit on several devices of the rank (device groups), DistributedDataParallelOptions::parts names
// them. Each device index then has buckets and a communicator of its own.
//
// Ranks that have different numbers of batches train under Join (join.h); without it the errors of the ranks that wait
// name it.
#pragma once

#include <cstdint>
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
#include "cohort/trainer/parallel/replicate/replica_check.h"
#include "cohort/trainer/placement/reducible.h"
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
  // Broadcasts rank 0's buffers before each synchronised forward pass in training mode.
  bool broadcast_buffers = true;
  // Makes .grad a view of a bucket, which saves a copy of every gradient and its memory.
  bool gradient_as_bucket_view = false;
  // Allows parameters that the loss doesn't depend on. Every iteration looks for them by walking the graph. A parameter
  // that no rank used keeps its .grad. The graph doesn't show which parameters a checkpointed function uses: with one,
  // parameters without a gradient count as unused only at the end of the backward pass.
  bool find_unused_parameters = false;
  // The graph is the same in every iteration. Unused parameters are learnt in the first one, and parameters may get
  // several gradients in a backward pass (checkpointed functions).
  bool static_graph = false;
  // N: compares the replicas' parameters in every N-th training step, bit by bit, and the buffers where they are
  // broadcast. The forward pass throws DistributedError (kDataLoss) on all ranks if they differ: it names the
  // parameter, the step, the group, and by majority the rank. A comparison reads all parameters once and sends 8 bytes
  // a rank. 0: never, at no cost. Steps are counted from here on: forward passes in training mode whose gradients are
  // averaged. Machines of different makes may compute different bits by right. Under Join, none is made once a rank has
  // ended.
  int64_t check_replicas_every = 0;
  // The parts of the module and their devices. Parameters in no part belong to device index 0.
  std::vector<ModulePart> parts;
  // Parameters of the module that this wrapper leaves alone: neither compared, sent nor averaged. For those that are
  // cut over the ranks of the group by others (PyTorch's _ddp_params_and_buffers_to_ignore; torchshard's
  // register_ddp_parameters_to_ignore returns them).
  std::vector<at::Tensor> ignored_parameters = {};
  // Set by ShardedDataParallel: the rank that a parameter's gradient goes to, by tensor implementation. Empty: all
  // ranks.
  std::map<const void*, int> owners = {};
};

// The part of DDP that does not depend on the module's forward signature.
class DataParallelState : public Joinable, public Reducible {
 public:
  // Parts name devices that the rank owns or, where it owns none, devices numbered from 0 on; others throw c10::Error.
  // Checks that all ranks have the same parameters, gives everyone rank 0's parameters and buffers, and registers the
  // hooks. Later changes of the module's set of parameters and buffers have no effect; their values may change.
  // Collective over `group`, which must outlive this. Throws DistributedError (kFailedPrecondition names the first
  // parameter that differs) and c10::Error, also for a parameter of which ranks of the group have different parts.
  DataParallelState(torch::nn::Module& module, comm::Communicator& group, DistributedDataParallelOptions options);

  // Forward calls both, on the caller's thread, in the same order on all ranks.
  //
  // Ends what the last backward pass left. Collective, and blocks, if it rebuilds the buckets (once), broadcasts
  // buffers, or runs under Join; otherwise local. Throws DistributedError if a parameter had no gradient in the last
  // pass, or a rank has failed.
  void BeforeForward(bool training);
  // Makes the next backward pass average, except under no_sync or NoGradGuard. Its collectives begin in autograd's
  // hooks. `searched`: `outputs` are all tensors of the result. Local. Throws c10::Error where they must be all and may
  // not be.
  void AfterForward(const std::vector<at::Tensor>& outputs, bool searched = true);
  // Lets `hook` reduce the buckets. Call it before the first backward pass, on all ranks. Throws c10::Error for null,
  // for a second hook, and where gradients go to owners.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { reducer_->RegisterCommHook(std::move(hook)); }
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  const Reducer& reducer() const { return *reducer_; }

  // Under a pipeline (reducible.h). Passes do no collective until Reduce, which averages. Broadcasts rank 0's buffers
  // at the beginning, if options say so. Not under Join.
  void set_micro_batches_under_way(bool under_way) override;
  void Reduce() override;

  comm::Communicator& join_group() override { return group_; }
  void Shadow(int call, const JoinIteration& iteration) override;
  void AfterInputs() override { reducer_->PrepareForward(/*averages=*/false); }
  void AfterJoin(const JoinIteration& last) override;
  std::string NameOf(int call) const override;
  void AbortGroups(const std::string& why) override { reducer_->Abort(why); }

 private:
  // The group for everything but gradients. The user's group is left to the user, also when this rank's loop under Join
  // fails.
  comm::Communicator& own_group() { return *device_groups_.front(); }
  void RefuseParts() const;
  void CheckSameParameters();
  // A training step begins; `everyone` makes it.
  void BeginStep(bool everyone);
  bool IsIgnored(const at::Tensor& parameter) const;
  // The module's parameters without ignored ones, and its buffers.
  std::vector<at::Tensor> State() const;

  comm::Communicator& group_;
  DistributedDataParallelOptions options_;
  torch::nn::Module& module_;
  std::vector<std::unique_ptr<comm::Communicator>> device_groups_;  // by device index
  std::unique_ptr<Reducer> reducer_;
  std::vector<at::Tensor> buffers_;  // of the module; asking it for them takes long
  ReplicaCheck replica_check_;
  bool sync_ = true;
  bool under_way_ = false;  // micro-batches, which averages nothing until Reduce
  int divisor_ = 1;
};

// While the guard lives, backward passes accumulate local gradients. The next one outside it averages the sum
// (PyTorch's `with ddp.no_sync():`).
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

  // Calls the module's forward, on all ranks alike if gradients are averaged. Where autograd records and outside
  // no_sync, the next backward pass averages the gradients; a second pass through the same graph is an error. Throws
  // what the module, BeforeForward and AfterForward throw. find_unused_parameters needs the tensors of the result, and
  // refuses results of a type without AppendTensors (tensors_of.h).
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
