#include "cohort/trainer/state/master_weights.h"

#include "cohort/trainer/base/distinct_parameters.h"
#include "cohort/trainer/placement/partitioned_optimizer.h"
#include "cohort/trainer/state/kept_optimizer.h"
#include "torch/torch.h"

namespace cohort::trainer {

using torch::optim::OptimizerParamGroup;

MasterWeightsBase::MasterWeightsBase(std::vector<OptimizerParamGroup> groups,
                                     std::unique_ptr<torch::optim::OptimizerOptions> defaults, const Factory& factory)
    : Optimizer(DistinctParameters(std::move(groups)), std::move(defaults)) {
  std::vector<OptimizerParamGroup> copies;
  for (const OptimizerParamGroup& group : param_groups()) {
    std::vector<at::Tensor> masters;
    for (const at::Tensor& parameter : group.params()) {
      const at::ScalarType type = parameter.scalar_type(), real = c10::toRealValueType(type);
      const bool exact = real == at::kFloat || real == at::kDouble;
      const at::ScalarType wide = parameter.is_complex() ? at::kComplexFloat : at::kFloat;
      masters.push_back(exact ? parameter : parameter.detach().to(wide).requires_grad_());
      parameters_.push_back(parameter);
      masters_.push_back(masters.back());
      versions_.push_back(parameter._version());
    }
    copies.emplace_back(std::move(masters), group.options().clone());
  }
  masters_optimizer_ = factory(std::move(copies));
  RefuseLbfgs(*masters_optimizer_, "MasterWeights",
              "which are stepped a few at a time: use LBFGS with float32 parameters");
}

void MasterWeightsBase::Follow(size_t index) {
  const at::Tensor& parameter = parameters_[index];
  at::Tensor& master = masters_[index];
  if (master.is_same(parameter) || versions_[index] == parameter._version()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor changed = parameter.ne(master.to(parameter.scalar_type()));
  if (changed.any().item<bool>()) master.copy_(at::where(changed, parameter.to(master.scalar_type()), master));
  versions_[index] = parameter._version();
}

at::Tensor MasterWeightsBase::step(LossClosure closure) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;  // elements
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  TORCH_CHECK(param_groups().size() == masters_optimizer_->param_groups().size(),
              "MasterWeights: a group was added to it by add_param_group; give it all groups when it is made, since it "
              "copies their parameters then");
  for (size_t g = 0; g < param_groups().size(); ++g) {
    masters_optimizer_->param_groups()[g].set_options(param_groups()[g].options().clone());
  }
  const at::NoGradGuard no_grad;
  const double factor = std::exchange(gradient_factor_, 1);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    TORCH_CHECK(masters_[i].sizes() == parameters_[i].sizes(), "MasterWeights: a parameter has sizes ",
                parameters_[i].sizes(), " now and had ", masters_[i].sizes(),
                "; wrap the module by FullyShardedDataParallel first, and make MasterWeights of its shards");
    Follow(i);
    gradients.push_back(parameters_[i].grad());
    masters_[i].mutable_grad() = at::Tensor();  // optimizers pass over what has no gradient
  }
  for (size_t begin = 0; begin < masters_.size();) {
    size_t end = begin;
    for (int64_t elements = 0; end < masters_.size() && elements < kAtOnce; ++end) {
      if (!gradients[end].defined()) continue;
      at::Tensor wide = gradients[end].to(masters_[end].scalar_type());
      if (factor != 1) wide = wide.is_same(gradients[end]) ? wide.mul(factor) : wide.mul_(factor);
      masters_[end].mutable_grad() = wide;
      elements += gradients[end].numel();
    }
    masters_optimizer_->step();
    for (size_t i = begin; i < end; ++i) {
      masters_[i].mutable_grad() = at::Tensor();
      if (!gradients[i].defined() || masters_[i].is_same(parameters_[i])) continue;
      parameters_[i].copy_(masters_[i]);
      versions_[i] = parameters_[i]._version();
    }
    begin = end;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients[i];
  return loss;
}

void MasterWeightsBase::save(torch::serialize::OutputArchive& /*archive*/) const {
  TORCH_CHECK(false,
              "MasterWeights: torch::save would keep nothing of its state; use SaveTrainingState "
              "(trainer/state/training_state.h)");
}

void MasterWeightsBase::load(torch::serialize::InputArchive& /*archive*/) {
  TORCH_CHECK(false,
              "MasterWeights: torch::load has nothing of its state; use LoadTrainingState "
              "(trainer/state/training_state.h)");
}

const at::Tensor& MasterWeightsBase::MasterOf(const at::Tensor& parameter) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].is_same(parameter)) continue;
    Follow(i);
    return masters_[i];
  }
  TORCH_CHECK(false, "MasterWeights: asked for the copy of a parameter that it was not given");
}

MasterWeightsBase* MasterWeightsOf(torch::optim::Optimizer& optimizer) {
  auto* zero = dynamic_cast<PartitionedOptimizer*>(&optimizer);
  return dynamic_cast<MasterWeightsBase*>(zero == nullptr ? &optimizer : &zero->local_optimizer());
}

void WidenGradients(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && gradient.element_size() < 4) gradient = gradient.to(at::kFloat);
    }
  }
}

void NarrowGradients(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined()) gradient = gradient.to(parameter.scalar_type());
    }
  }
}

}  // namespace cohort::trainer
