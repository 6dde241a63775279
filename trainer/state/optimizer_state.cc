#include "cohort/trainer/state/optimizer_state.h"

#include <memory>

#include "cohort/trainer/base/torch_compat.h"
#include "cohort/trainer/state/kept_optimizer.h"
#include "cohort/trainer/state/master_weights.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using State = std::map<std::string, at::Tensor>;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

void Put(State& state, const std::string& name, const at::Tensor& tensor) {
  if (tensor.defined()) state[name] = tensor;
}

at::Tensor Step(int64_t step) { return at::scalar_tensor(step, at::kLong); }

const at::Tensor& Take(const State& state, const std::string& name) {
  const auto found = state.find(name);
  TORCH_CHECK(found != state.end(), "the optimizer's state lacks ", name, "; was it saved by another kind?");
  return found->second;
}

at::Tensor TakeIfThere(const State& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? at::Tensor() : found->second;
}

template <typename ParamState>
bool GetAdam(OptimizerParamState& base, State& state) {
  auto* own = dynamic_cast<ParamState*>(&base);
  if (own == nullptr) return false;
  state["step"] = Step(own->step());
  Put(state, "exp_avg", own->exp_avg());
  Put(state, "exp_avg_sq", own->exp_avg_sq());
  Put(state, "max_exp_avg_sq", own->max_exp_avg_sq());
  return true;
}

template <typename ParamState>
std::unique_ptr<OptimizerParamState> MakeAdam(const State& state) {
  auto own = std::make_unique<ParamState>();
  own->step(Take(state, "step").item<int64_t>());
  own->exp_avg(Take(state, "exp_avg"));
  own->exp_avg_sq(Take(state, "exp_avg_sq"));
  own->max_exp_avg_sq(TakeIfThere(state, "max_exp_avg_sq"));
  return own;
}

State Get(OptimizerParamState& base) {
  State state;
  if (GetAdam<torch::optim::AdamParamState>(base, state) || GetAdam<torch::optim::AdamWParamState>(base, state)) {
    return state;
  }
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&base)) {
    Put(state, "momentum_buffer", sgd->momentum_buffer());
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&base)) {
    state["step"] = Step(adagrad->step());
    Put(state, "sum", adagrad->sum());
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&base)) {
    state["step"] = Step(rmsprop->step());
    Put(state, "square_avg", rmsprop->square_avg());
    Put(state, "momentum_buffer", rmsprop->momentum_buffer());
    Put(state, "grad_avg", rmsprop->grad_avg());
  } else {
    TORCH_CHECK(false, "the state of this optimizer can't be kept; those of SGD, Adam, AdamW, Adagrad and RMSprop can");
  }
  return state;
}

std::unique_ptr<OptimizerParamState> Make(Optimizer& optimizer, const State& state) {
  if (dynamic_cast<torch::optim::Adam*>(&optimizer)) return MakeAdam<torch::optim::AdamParamState>(state);
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer)) return MakeAdam<torch::optim::AdamWParamState>(state);
  if (dynamic_cast<torch::optim::SGD*>(&optimizer)) {
    auto own = std::make_unique<torch::optim::SGDParamState>();
    own->momentum_buffer(TakeIfThere(state, "momentum_buffer"));
    return own;
  }
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer)) {
    auto own = std::make_unique<torch::optim::AdagradParamState>();
    own->step(Take(state, "step").item<int64_t>());
    own->sum(Take(state, "sum"));
    return own;
  }
  TORCH_CHECK(dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr,
              "the state of this optimizer can't be restored; those of SGD, Adam, AdamW, Adagrad and RMSprop can");
  auto own = std::make_unique<torch::optim::RMSpropParamState>();
  own->step(Take(state, "step").item<int64_t>());
  own->square_avg(Take(state, "square_avg"));
  own->momentum_buffer(TakeIfThere(state, "momentum_buffer"));
  own->grad_avg(TakeIfThere(state, "grad_avg"));
  return own;
}

// The state that an optimizer of a program's own gives, if ranks with other parts can load it.
State Checked(State state, const at::Tensor& parameter) {
  for (const auto& [name, tensor] : state) {
    const bool step = name == "step" && tensor.defined() && tensor.scalar_type() == at::kLong && tensor.dim() == 0;
    TORCH_CHECK(!name.empty() && name.find('.') == std::string::npos && name != kMasterWeight, "KeptOptimizer: \"",
                name, "\" is no name that a checkpoint can keep a parameter's state under");
    TORCH_CHECK(step || (tensor.defined() && tensor.sizes() == parameter.sizes()), "KeptOptimizer: state ", name,
                " must have the sizes of its parameter, ", parameter.sizes(),
                ", or be \"step\", an int64 tensor without dimensions");
  }
  return state;
}

}  // namespace

bool HasKnownState(const Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr;
}

State OptimizerStateOf(Optimizer& optimizer, const at::Tensor& parameter) {
  if (auto* masters = dynamic_cast<MasterWeightsBase*>(&optimizer)) {
    const at::Tensor& master = masters->MasterOf(parameter);
    State state = OptimizerStateOf(masters->master_optimizer(), master);
    if (!master.is_same(parameter)) state[kMasterWeight] = master.detach();
    return state;
  }
  if (const auto* kept = dynamic_cast<KeptOptimizer*>(&optimizer))
    return Checked(kept->ParameterState(parameter), parameter);
  auto& states = optimizer.state();
  const auto found = states.find(compat::OptimizerStateKey(states, parameter));
  return found == states.end() ? State{} : Get(*found->second);
}

void SetOptimizerState(Optimizer& optimizer, const at::Tensor& parameter, const State& state) {
  if (auto* masters = dynamic_cast<MasterWeightsBase*>(&optimizer)) {
    const at::NoGradGuard no_grad;
    at::Tensor master = masters->MasterOf(parameter);
    State rest = state;
    if (!master.is_same(parameter)) master.copy_(rest.empty() ? parameter : Take(rest, kMasterWeight));
    rest.erase(kMasterWeight);
    return SetOptimizerState(masters->master_optimizer(), master, rest);
  }
  if (auto* kept = dynamic_cast<KeptOptimizer*>(&optimizer)) return kept->SetParameterState(parameter, state);
  auto& states = optimizer.state();
  const auto key = compat::OptimizerStateKey(states, parameter);
  if (state.empty() && dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) {
    states.erase(key);
    return;
  }
  // Adagrad makes its state at once, for the parameters that it has.
  if (state.empty() && states.find(key) == states.end()) return;
  states[key] = Make(optimizer, state);
}

}  // namespace cohort::trainer
