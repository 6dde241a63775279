#include "cohort/trainer/parallel/fsdp/flat_gradient.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/transfer/window_pool.h"
#include "torch/torch.h"

namespace cohort::trainer {

FlatGradient::FlatGradient(const std::vector<FsdpParameter>& parameters, int shards, int64_t shard_numel,
                           const at::TensorOptions& options)
    : parameters_(parameters),
      shards_(shards),
      shard_numel_(shard_numel),
      options_(options),
      filled_(parameters.size(), false) {}

size_t FlatGradient::host_bytes() const {
  if (!options_.device().is_cpu()) return 0;
  return static_cast<size_t>(numel()) * options_.dtype().itemsize();
}

void FlatGradient::Add(int index, const at::Tensor& grad, double share) {
  if (!flat_.defined()) flat_ = New();
  streams_.Enter(flat_);
  if (filled_[index] || !FillSlot(SlotOf(parameters_[index]), grad, share)) AddByTorch(index, grad, share);
  filled_[index] = true;
}

GradientSlot FlatGradient::SlotOf(const FsdpParameter& parameter) const {
  return SlotIn(flat_, parameter.offset, parameter.numel, parameter.chunk, shard_numel_);
}

// Adds two parts: the ranks whose chunks have as many rows as the first one's, and the one that has fewer.
void FlatGradient::AddByTorch(int index, const at::Tensor& grad, double share) {
  const FsdpParameter& parameter = parameters_[index];
  if (parameter.numel == 0) return;
  const at::Tensor rows = grad.dim() == 0 ? grad.view({1}) : grad;
  const int64_t each = parameter.chunk * rows.size(0) / parameter.numel, even = rows.size(0) / each;
  AddRows(index, rows.narrow(0, 0, even * each), 0, even, share);
  const int64_t rest = rows.size(0) - even * each;
  if (rest > 0) AddRows(index, rows.narrow(0, even * each, rest), even, 1, share);
}

// Adds rows that `ranks` ranks from number `first` on share evenly.
void FlatGradient::AddRows(int index, const at::Tensor& rows, int64_t first, int64_t ranks, double share) {
  std::vector<int64_t> sizes = rows.sizes().vec(), strides(sizes.size(), 1);
  sizes.front() /= ranks;
  for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
  sizes.insert(sizes.begin(), ranks);
  strides.insert(strides.begin(), shard_numel_);
  at::Tensor place = AsReals(flat_.as_strided(sizes, strides, first * shard_numel_ + parameters_[index].offset));
  const at::Tensor grad = AsReals(rows.reshape(sizes));
  const bool small = grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16;
  if (filled_[index]) {
    place.add_(small ? grad.to(at::kFloat) : grad, share);
  } else if (small || grad.scalar_type() != place.scalar_type()) {
    place.copy_(grad.to(at::kFloat).mul_(share));  // rounded once, after the division
  } else {
    at::mul_out(place, grad, at::scalar_tensor(share, at::TensorOptions(grad.scalar_type())));  // no kernel
  }
}

// A parameter's chunks.
at::Tensor FlatGradient::BlocksOf(const FsdpParameter& parameter) const {
  return flat_.view({shards_, shard_numel_}).narrow(1, parameter.offset, parameter.chunk);
}

// Padding is written once on devices, where each little piece would cost a kernel. The host writes it before each
// reduction, because its windows have held other units.
at::Tensor FlatGradient::New() const {
  const auto padded = [this](const FsdpParameter& each) { return each.numel < each.chunk * shards_; };
  if (!options_.device().is_cpu() && std::any_of(parameters_.begin(), parameters_.end(), padded)) {
    return at::zeros({numel()}, options_);
  }
  return pool_ != nullptr ? pool_->Take(numel(), options_) : at::empty({numel()}, options_);
}

void FlatGradient::ZeroPadding() const {
  if (!flat_.device().is_cpu()) return;
  const auto size = static_cast<int64_t>(flat_.element_size());
  for (const FsdpParameter& parameter : parameters_) {
    if (parameter.numel == parameter.chunk * shards_) continue;
    auto* chunk = static_cast<char*>(flat_.data_ptr()) + parameter.offset * size;
    for (int rank = 0; rank < shards_; ++rank, chunk += shard_numel_ * size) {
      const int64_t used = std::clamp<int64_t>(parameter.numel - rank * parameter.chunk, 0, parameter.chunk);
      std::memset(chunk + used * size, 0, static_cast<size_t>((parameter.chunk - used) * size));
    }
  }
}

at::Tensor FlatGradient::Release() {
  if (!flat_.defined()) return New().zero_();
  const at::NoGradGuard no_grad;
  streams_.Enter(flat_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!filled_[i]) BlocksOf(parameters_[i]).zero_();
  }
  ZeroPadding();
  filled_.assign(parameters_.size(), false);
  return std::exchange(flat_, at::Tensor());
}

void FlatGradient::Scale(double factor) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (filled_[i]) BlocksOf(parameters_[i]).mul_(factor);
  }
}

void FlatGradient::Drop() {
  filled_.assign(parameters_.size(), false);
  flat_ = at::Tensor();
}

}  // namespace cohort::trainer
