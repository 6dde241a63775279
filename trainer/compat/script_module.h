// ScriptModule trains a TorchScript module, which Python has exported, as a libtorch module.
//
//   auto model = std::make_shared<ScriptModule<>>(torch::jit::load("net.pt"));  // of torch.jit.script(net).save
//   DistributedDataParallel ddp(model, job.world());
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);
//   torch::nll_loss(ddp.forward(images), labels).backward();
//
// Parameters and buffers are those of the script, under its names, which are those of Python's state_dict(). Wrappers,
// optimizers and checkpoints take it like any module. model->script().save("trained.pt") gives Python the trained
// script back; shards need SummonFullParams around it.
#pragma once

#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// The part that does not depend on the type of the result. It also stands for a module within the script.
class ScriptModuleBase : public torch::nn::Module {
 public:
  // Shares the script's parameters and buffers. Throws c10::Error for a script without parameters: torch.jit.freeze has
  // made constants of them.
  explicit ScriptModuleBase(torch::jit::Module script);
  void train(bool on = true) override;
  const torch::jit::Module& script() const { return script_; }

 protected:
  // Calls the script's forward. Throws c10::Error, with the place in the script.
  c10::IValue Call(std::vector<c10::IValue> inputs);

 private:
  struct Inner {};
  ScriptModuleBase(torch::jit::Module script, Inner);
  void FollowBuffers();

  torch::jit::Module script_;
};

// `Output` is the type that the script's forward returns: at::Tensor, a std::tuple or std::vector of such, ...
template <typename Output = at::Tensor>
class ScriptModule : public ScriptModuleBase {
 public:
  using ScriptModuleBase::ScriptModuleBase;

  // Throws c10::Error, with the place in the script, also where it returns another type.
  template <typename... Inputs>
  Output forward(const Inputs&... inputs) {
    return Call({c10::IValue(inputs)...}).template to<Output>();
  }
};

}  // namespace cohort::trainer
