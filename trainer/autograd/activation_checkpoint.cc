#include "cohort/trainer/autograd/activation_checkpoint.h"

#include <map>
#include <optional>
#include <string>

#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/autograd/random_states.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The random numbers that a function draws: of torch's generators, of regions, and by place.
struct RandomNumbers {
  RandomStates generators;
  std::map<std::string, RandomStates> regions;
  RandomPlace place;
};

// While it lives, random numbers repeat; afterwards they go on from where they were.
class RandomNumbersGuard {
 public:
  explicit RandomNumbersGuard(const RandomNumbers& again)
      : generators_(again.generators), regions_before_(RegionStates()), place_(again.place) {
    RestoreRegionStates(again.regions);
  }
  ~RandomNumbersGuard() { RestoreRegionStates(regions_before_); }
  RandomNumbersGuard(const RandomNumbersGuard&) = delete;
  RandomNumbersGuard& operator=(const RandomNumbersGuard&) = delete;

 private:
  RandomStatesGuard generators_;
  std::map<std::string, RandomStates> regions_before_;
  RandomPlaceGuard place_;
};

// Holds all that backward needs to run the function again.
struct Recomputation : torch::CustomClassHolder {
  TensorFunction function;
  AutocastState autocast;
  std::optional<RandomNumbers> random;
  RecomputedBackward backward;  // empty: torch's
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
    auto again = AgainOf(*ctx);
    TORCH_CHECK(again->backward || torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "checkpoint: gradients of chosen tensors (autograd::grad, backward with inputs) can't be computed "
                "through a checkpointed function; use backward()");
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
    variable_list result(2);  // neither the recomputation nor the anchor
    if (again->backward && !roots.empty()) {
      for (at::Tensor& gradient : again->backward(roots, root_gradients, inputs)) result.push_back(std::move(gradient));
      return result;
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    for (const at::Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : at::Tensor());
    return result;
  }

  static c10::intrusive_ptr<Recomputation> AgainOf(AutogradContext& ctx) {
    return c10::static_intrusive_pointer_cast<Recomputation>(ctx.saved_data["again"].toCapsule());
  }

 private:
  static variable_list Recompute(const Recomputation& again, const variable_list& inputs) {
    const at::AutoGradMode grad(true);
    const AutocastStateGuard autocast(again.autocast);
    std::optional<RandomNumbersGuard> random;
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
  if (options.preserve_rng_state) {
    again->random = RandomNumbers{RandomStates::Of(inputs), RegionStates(), random_place()};
  }
  const at::Tensor anchor = at::empty({0}, at::kFloat).set_requires_grad(true);
  return CheckpointFunction::apply(again, anchor, at::TensorList(inputs));  // torch looks into no other list
}

bool IsCheckpoint(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::CppNode<CheckpointFunction>*>(&node) != nullptr;
}

void SetRecomputedBackward(torch::autograd::Node& checkpoint, RecomputedBackward backward) {
  auto* const node = dynamic_cast<torch::autograd::CppNode<CheckpointFunction>*>(&checkpoint);
  TORCH_CHECK(node != nullptr, "SetRecomputedBackward: ", checkpoint.name(), " is no checkpointed function");
  CheckpointFunction::AgainOf(node->ctx_)->backward = std::move(backward);
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
