#include "cohort/trainer/autograd/activation_checkpoint.h"

#include <optional>

#include "cohort/trainer/autograd/autocast.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A generator's lock is torch's own.
class GeneratorLock {
 public:
  explicit GeneratorLock(at::Generator& generator) : generator_(generator) { generator_.mutex().lock(); }
  ~GeneratorLock() { generator_.mutex().unlock(); }
  GeneratorLock(const GeneratorLock&) = delete;
  GeneratorLock& operator=(const GeneratorLock&) = delete;

 private:
  at::Generator& generator_;
};

// The generators that a function may draw from: the CPU's and those of the devices of its inputs.
class RandomStates {
 public:
  static RandomStates Of(const std::vector<at::Tensor>& inputs) {
    RandomStates states;
    states.Add(at::kCPU);
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.is_cuda()) states.Add(input.device());
    }
    return states;
  }

  // Now, on the same devices.
  RandomStates Current() const {
    RandomStates states;
    for (const auto& [device, state] : states_) states.Add(device);
    return states;
  }

  void Restore() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const GeneratorLock lock(generator);
      generator.set_state(state);
    }
  }

 private:
  void Add(at::Device device) {
    for (const auto& [known, state] : states_) {
      if (known == device) return;
    }
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const GeneratorLock lock(generator);
    states_.emplace_back(device, generator.get_state());
  }

  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

// While it lives, generators go on from `states`; afterwards from where they were.
class RandomStatesGuard {
 public:
  explicit RandomStatesGuard(const RandomStates& states) : before_(states.Current()) { states.Restore(); }
  ~RandomStatesGuard() { before_.Restore(); }
  RandomStatesGuard(const RandomStatesGuard&) = delete;
  RandomStatesGuard& operator=(const RandomStatesGuard&) = delete;

 private:
  RandomStates before_;
};

// Holds all that backward needs to run the function again.
struct Recomputation : torch::CustomClassHolder {
  TensorFunction function;
  AutocastState autocast;
  std::optional<RandomStates> random;
};

class CheckpointFunction : public torch::autograd::Function<CheckpointFunction> {
 public:
  // `anchor` requires grad, so that backward comes here also when only parameters want gradients.
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<Recomputation> again, const at::Tensor& anchor,
                               at::TensorList list) {
    (void)anchor;
    const variable_list inputs = list.vec();
    ctx->saved_data["again"] = c10::IValue::make_capsule(again);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(inputs);
    // Casts of weights that are made without a graph must not be found by those who need one.
    AutocastState autocast = again->autocast;
    autocast.cache = false;
    const AutocastStateGuard guard(autocast);
    const variable_list outputs = again->function(inputs);
    variable_list discrete;
    for (const at::Tensor& output : outputs) {
      if (output.defined() && !output.is_floating_point() && !output.is_complex()) discrete.push_back(output);
    }
    ctx->mark_non_differentiable(discrete);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "checkpoint: gradients of chosen tensors (autograd::grad, backward with inputs) can't be computed "
                "through a checkpointed function; use backward()");
    auto again = c10::static_intrusive_pointer_cast<Recomputation>(ctx->saved_data["again"].toCapsule());
    variable_list inputs;
    for (const at::Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach().set_requires_grad(saved.requires_grad()) : saved);
    }
    const variable_list outputs = Recompute(*again, inputs);
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list result(2);  // neither the recomputation nor the anchor
    for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : at::Tensor());
    return result;
  }

 private:
  static variable_list Recompute(const Recomputation& again, const variable_list& inputs) {
    const at::AutoGradMode grad(true);
    const AutocastStateGuard autocast(again.autocast);
    std::optional<RandomStatesGuard> random;
    if (again.random.has_value()) random.emplace(*again.random);
    return again.function(inputs);
  }
};

}  // namespace

std::vector<at::Tensor> CheckpointedCall(TensorFunction function, const std::vector<at::Tensor>& inputs,
                                         const ActivationCheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  auto again = c10::make_intrusive<Recomputation>();
  again->function = std::move(function);
  again->autocast = CurrentAutocast();
  if (options.preserve_rng_state) again->random = RandomStates::Of(inputs);
  const at::Tensor anchor = at::empty({0}, at::kFloat).set_requires_grad(true);
  return CheckpointFunction::apply(again, anchor, at::TensorList(inputs));  // torch looks into no other list
}

bool IsCheckpoint(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<CheckpointFunction>*>(&node) != nullptr;
}

BufferGuard::BufferGuard(const torch::nn::Module& module) : buffers_(module.buffers()) {
  for (const at::Tensor& buffer : buffers_) before_.push_back(buffer.detach().clone());
}

BufferGuard::~BufferGuard() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    // Through an alias: autograd may have saved the buffer, and a write would make it refuse its own values.
    at::Tensor alias = buffers_[i].variable_data();
    alias.copy_(before_[i]);
  }
}

}  // namespace cohort::trainer
