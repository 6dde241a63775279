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
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "torch/nn/module.h"
#include "trainer/gradient_buckets.h"
#include "trainer/local_device.h"
#include "trainer/reducer.h"

namespace cohort::trainer {

// A submodule and the device that it sits on. The caller moves it there (Module::to).
struct ModulePart {
  torch::nn::Module* module = nullptr;
  LocalDevice device;
};

struct DistributedDataParallelOptions {
  BucketLimits buckets;
  // Broadcast rank 0's buffers before each synchronised forward pass in training mode.
  bool broadcast_buffers = true;
  // Which part of the module sits on which device; parameters in no part belong to device index 0.
  std::vector<ModulePart> parts;
};

// Everything of DDP that does not depend on the module's forward signature.
class DataParallelState {
 public:
  // Collective over `group` (which must outlive this): checks that all ranks have the same parameters, gives everyone
  // rank 0's parameters and buffers, and registers the hooks. Throws DistributedError (kFailedPrecondition names the
  // first parameter that differs) and c10::Error.
  DataParallelState(torch::nn::Module& module, comm::Communicator& group, DistributedDataParallelOptions options);

  void BeforeForward(bool training);
  void AfterForward();
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }
  const Reducer& reducer() const { return *reducer_; }

 private:
  void CheckSameParameters();
  void BroadcastTensors(const std::vector<at::Tensor>& tensors, const std::string& what);

  comm::Communicator& group_;
  DistributedDataParallelOptions options_;
  torch::nn::Module& module_;
  std::vector<std::unique_ptr<comm::Communicator>> device_groups_;  // by device index
  std::unique_ptr<Reducer> reducer_;
  bool sync_ = true;
};

// While it lives, backward passes accumulate gradients without averaging them; the first backward after it averages the
// accumulated ones. (PyTorch's `with ddp.no_sync():`.)
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
class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<ModuleType> module, comm::Communicator& group,
                          DistributedDataParallelOptions options = {})
      : module_(std::move(module)), state_(*module_, group, std::move(options)) {}

  // The module's forward. Where autograd records and outside no_sync, the next backward pass averages the gradients.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    state_.BeforeForward(module_->is_training());
    auto output = module_->forward(std::forward<Inputs>(inputs)...);
    state_.AfterForward();
    return output;
  }
  NoSyncGuard no_sync() { return NoSyncGuard(state_); }

  const std::shared_ptr<ModuleType>& module() const { return module_; }
  const Reducer& reducer() const { return state_.reducer(); }

 private:
  std::shared_ptr<ModuleType> module_;
  DataParallelState state_;
};

}  // namespace cohort::trainer
