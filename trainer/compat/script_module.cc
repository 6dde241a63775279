#include "cohort/trainer/compat/script_module.h"

#include <memory>
#include <utility>

#include "torch/torch.h"

namespace cohort::trainer {

ScriptModuleBase::ScriptModuleBase(torch::jit::Module script) : ScriptModuleBase(std::move(script), Inner()) {
  TORCH_CHECK(!parameters().empty(), "ScriptModule: the script ", script_.type()->name()->name(),
              " has no parameters to train; torch.jit.freeze and optimize_for_inference make constants of them: save "
              "the script before");
  Module::train(script_.is_training());
}

ScriptModuleBase::ScriptModuleBase(torch::jit::Module script, Inner /*inner*/) : script_(std::move(script)) {
  for (const auto& item : script_.named_parameters(/*recurse=*/false)) {
    register_parameter(item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script_.named_buffers(/*recurse=*/false)) register_buffer(item.name, item.value);
  for (const auto& item : script_.named_children()) {
    register_module(item.name, std::shared_ptr<ScriptModuleBase>(new ScriptModuleBase(item.value, Inner())));
  }
}

void ScriptModuleBase::train(bool on) {
  Module::train(on);
  script_.train(on);
}

c10::IValue ScriptModuleBase::Call(std::vector<c10::IValue> inputs) {
  c10::IValue output = script_.forward(std::move(inputs));
  FollowBuffers();
  return output;
}

// A script may assign another tensor to a buffer. The buffer that others know takes its values.
void ScriptModuleBase::FollowBuffers() {
  const at::NoGradGuard no_grad;
  for (auto& item : named_buffers(/*recurse=*/false)) {
    const at::Tensor now = script_.attr(item.key()).toTensor();
    if (now.is_same(item.value())) continue;
    item.value().set_data(now.detach());
    script_.setattr(item.key(), item.value());
  }
  for (const auto& child : children()) static_cast<ScriptModuleBase&>(*child).FollowBuffers();
}

}  // namespace cohort::trainer
