#include "cohort/trainer/parallel/fsdp/unit_gradients.h"

#include <utility>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

at::TensorOptions FlatOptions(const FlatParameters& weights, at::ScalarType reduce_type) {
  if (!weights.whole().defined()) return at::TensorOptions(reduce_type);
  return weights.whole().options().dtype(reduce_type);
}

}  // namespace

UnitGradients::UnitGradients(std::vector<FsdpParameter>& parameters, const FlatParameters& weights, int shards,
                             at::ScalarType reduce_type)
    : parameters_(parameters),
      weights_(weights),
      flat_(parameters, shards, weights.shard_numel(), FlatOptions(weights, reduce_type)),
      saved_(parameters.size()) {
  Expect();
}

void UnitGradients::Become(Phase next) {
  constexpr bool kLegal[4][4] = {
      // to kIdle, kTaking, kReduced, kDone
      {true, true, false, true},    // from kIdle
      {true, false, true, false},   // from kTaking
      {false, false, false, true},  // from kReduced
      {true, false, true, true},    // from kDone
  };
  TORCH_INTERNAL_ASSERT(kLegal[static_cast<int>(phase_)][static_cast<int>(next)], "a unit's gradients go from phase ",
                        static_cast<int>(phase_), " to ", static_cast<int>(next));
  phase_ = next;
}

void UnitGradients::Expect() {
  trainable_ = 0;
  for (const FsdpParameter& parameter : parameters_) trainable_ += parameter.tensor.requires_grad() ? 1 : 0;
  pending_ = trainable_;
  seen_.assign(parameters_.size(), false);
  Become(Phase::kIdle);
}

void UnitGradients::Begin() {
  if (begun()) return;
  Become(phase_ == Phase::kIdle ? Phase::kTaking : Phase::kReduced);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    saved_[i] = std::exchange(parameters_[i].tensor.mutable_grad(), at::Tensor());
  }
}

void UnitGradients::Take(int index, double share) {
  const at::NoGradGuard no_grad;
  FsdpParameter& parameter = parameters_[index];
  const at::Tensor grad = std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  if (grad.defined()) {
    TORCH_CHECK(phase_ == Phase::kIdle || phase_ == Phase::kTaking, "FullyShardedDataParallel: parameter ",
                parameter.name,
                " got another gradient after those of its unit were complete and reduced. A checkpointed function that "
                "is called several times in one run of a unit must be a unit of its own; and a graph that had a "
                "backward pass can't share another one with a later forward pass.");
    flat_.Add(index, grad.layout() == at::kStrided ? grad : grad.to_dense(), share);
  }
  if (!seen_[index]) --pending_;
  seen_[index] = true;
}

at::Tensor UnitGradients::Release() {
  Become(begun() ? Phase::kReduced : Phase::kDone);
  return flat_.Release();
}

void UnitGradients::SetShards(const at::Tensor& reduced) {
  const at::NoGradGuard no_grad;
  Begin();
  const at::Tensor& shard = weights_.shard();
  const bool as_shard = reduced.scalar_type() == shard.scalar_type() && reduced.device() == shard.device();
  const at::Tensor own = as_shard ? reduced : reduced.to(shard.device(), shard.scalar_type());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    FsdpParameter& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad()) continue;
    at::Tensor saved = std::exchange(saved_[i], at::Tensor());
    const at::Tensor part = LocalView(own, parameter);
    parameter.tensor.mutable_grad() = saved.defined() ? saved.add_(part) : part;
  }
  EndTaking();
}

void UnitGradients::Restore() {
  if (!begun()) return;
  EndTaking();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.mutable_grad() = std::exchange(saved_[i], at::Tensor());
  }
}

void UnitGradients::DropShards() {
  for (FsdpParameter& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
}

}  // namespace cohort::trainer
