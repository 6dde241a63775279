#include "trainer/fsdp_unit.h"

#include <algorithm>
#include <utility>

#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/torch.h"
#include "trainer/collectives.h"
#include "trainer/deferred_init.h"
#include "trainer/error.h"
#include "trainer/fsdp_root.h"
#include "trainer/gradient_slot.h"
#include "trainer/storage_pool.h"
#include "trainer/tensor_buffer.h"
#include "trainer/window_pool.h"
#include "trainer/window_tensor.h"

namespace cohort::trainer {
namespace {

bool ReshardsAfterForward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

}  // namespace

FsdpUnit::FsdpUnit(std::vector<FsdpParameter> parameters, int shards, int shard,
                   const FullyShardedDataParallelOptions& options)
    : parameters_(std::move(parameters)),
      shards_(shards),
      rank_(shard),
      options_(options),
      reshard_after_forward_(ReshardsAfterForward(options.sharding_strategy)) {
  if (options.reshard_after_forward.has_value()) {
    const int ranks = options.reshard_after_forward->ranks();
    TORCH_CHECK(ranks >= 0 && shards % std::max(ranks, 1) == 0, "FullyShardedDataParallel: reshard_after_forward is ",
                ranks, ", which does not divide the ", shards, " ranks that share the parameters");
    reshard_after_forward_ = ranks != 1;
    if (ranks > 1 && ranks < shards) backward_ranks_ = ranks;
  }
  const at::NoGradGuard no_grad;
  int64_t total = 0;
  for (FsdpParameter& parameter : parameters_) {
    const at::Tensor& first = parameters_.front().tensor;
    const bool one_device = options_.device_id.has_value() || parameter.tensor.device() == first.device();
    TORCH_CHECK(parameter.tensor.scalar_type() == first.scalar_type() && one_device,
                "FullyShardedDataParallel: parameters ", parameters_.front().name, " (", first.scalar_type(), " on ",
                first.device(), ") and ", parameter.name, " (", parameter.tensor.scalar_type(), " on ",
                parameter.tensor.device(), ") can't share a flat vector; wrap their modules one by one");
    parameter.sizes = parameter.tensor.sizes().vec();
    parameter.numel = parameter.tensor.numel();
    parameter.offset = total;
    total += parameter.numel;
  }
  filled_.assign(parameters_.size(), false);
  accumulators_.resize(parameters_.size());
  saved_grads_.resize(parameters_.size());
  ExpectAllGradients();
  if (parameters_.empty()) return;
  Shard();
}

FsdpUnit::~FsdpUnit() {
  const absl::Status ignored = gather_.Wait();  // which writes into full_
  (void)ignored;
}

void FsdpUnit::Shard() {
  const FsdpParameter& last = parameters_.back();
  const int64_t shard_numel = (last.offset + last.numel + shards_ - 1) / shards_;
  const at::Tensor& any = parameters_.front().tensor;
  const at::TensorOptions own = any.options().requires_grad(false).device(options_.device_id.value_or(any.device()));
  const bool offloads = options_.cpu_offload && own.device().is_cuda();
  shard_ = at::zeros({shard_numel}, offloads ? own.device(at::kCPU).pinned_memory(true) : own);
  const int64_t first = rank_ * shard_numel;
  for (FsdpParameter& parameter : parameters_) {
    parameter.begin = std::clamp<int64_t>(first - parameter.offset, 0, parameter.numel);
    parameter.end = std::clamp<int64_t>(first + shard_numel - parameter.offset, 0, parameter.numel);
    at::Tensor mine = LocalView(shard_, parameter);
    if (HasData(parameter.tensor)) {
      mine.copy_(parameter.tensor.reshape({-1}).narrow(0, parameter.begin, parameter.end - parameter.begin));
    } else {
      mine.copy_(WithoutValues(mine.sizes(), own.device(at::kCPU)));
    }
  }
  resident_ = shards_ == 1 && compute_type() == shard_.scalar_type() && !offloads;
  full_ = resident_ ? shard_ : at::empty({shard_numel * shards_}, own.dtype(compute_type()));
  for (FsdpParameter& parameter : parameters_) {
    full_views_.push_back(full_.narrow(0, parameter.offset, parameter.numel).view(parameter.sizes));
    parameter.tensor.set_data(LocalView(shard_, parameter));
  }
  if (!resident_) StoragePool(0).Detach(full_);
}

at::ScalarType FsdpUnit::compute_type() const {
  return options_.mixed_precision.param_dtype.value_or(shard_.scalar_type());
}

at::ScalarType FsdpUnit::reduce_type() const { return options_.mixed_precision.reduce_dtype.value_or(compute_type()); }

// The same memory without torch's dispatch, of which there would be several microseconds a step for each parameter. No
// view to autograd, so that zero_grad can detach what is a gradient.
at::Tensor FsdpUnit::LocalView(const at::Tensor& shard, const FsdpParameter& parameter) const {
  const int64_t place = parameter.offset + parameter.begin - rank_ * shard.numel();
  const int64_t count = parameter.end - parameter.begin;
  auto part = shard.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                   /*allow_tensor_metadata_change=*/true);
  part->set_autograd_meta(nullptr);
  if (count > 0) part->set_storage_offset(shard.storage_offset() + place);  // an empty part's may be outside
  part->set_sizes_contiguous({count});
  return at::Tensor(std::move(part));
}

void FsdpUnit::EnterWindows(comm::Communicator& group, std::shared_ptr<WindowPool> pool) {
  flat_pool_ = std::move(pool);
  if (gathers() && same_kind()) in_window_ = EnterWindow(group, shard_);
}

void FsdpUnit::LeaveWindows() {
  if (std::exchange(in_window_, false)) LeaveWindowForGood(shard_);
  DropFlatGradient();
  flat_pool_ = nullptr;
}

size_t FsdpUnit::flat_gradient_bytes() const {
  if (!full_.defined() || !full_.device().is_cpu()) return 0;
  return static_cast<size_t>(padded_numel()) * c10::elementSize(reduce_type());
}

void FsdpUnit::StartUnshard(comm::Communicator& group, comm::Communicator* neighbours, StoragePool& pool) {
  if (state_ != State::kSharded) return;
  state_ = State::kGathering;
  if (resident_ || parameters_.empty()) return;
  const at::NoGradGuard no_grad;
  pool.Attach(full_);
  if (kept_numel() > 0) {
    gather_ = AllGather(*neighbours, AsBuffer(kept_), AsBuffer(full_));
    return;
  }
  if (shards_ > 1 && same_kind()) {
    gather_ = AllGather(group, AsBuffer(shard_), AsBuffer(full_));
    return;
  }
  at::Tensor mine = full_.narrow(0, rank_ * shard_.numel(), shard_.numel());
  mine.copy_(shard_, /*non_blocking=*/true);
  if (shards_ > 1) gather_ = AllGather(group, AsBuffer(mine), AsBuffer(full_));
}

void FsdpUnit::FinishUnshard() {
  if (state_ != State::kGathering) return;
  const absl::Status status = gather_.Wait();
  gather_ = runtime::Work();
  kept_ = at::Tensor();
  if (!status.ok()) ThrowUnlessOk(status, "gathering the parameters from " + parameters_.front().name);
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.set_data(full_views_[i]);
  state_ = State::kUnsharded;
}

void FsdpUnit::Reshard(StoragePool& pool) {
  const absl::Status status = gather_.Wait();
  gather_ = runtime::Work();
  kept_ = at::Tensor();
  if (state_ == State::kSharded) return;
  if (state_ == State::kUnsharded) {
    for (FsdpParameter& parameter : parameters_) parameter.tensor.set_data(LocalView(shard_, parameter));
  }
  state_ = State::kSharded;
  if (!resident_ && !parameters_.empty()) pool.Detach(full_);
  if (full_.defined() && !same_kind()) {
    for (auto& held : accumulators_) held.clear();  // graphs hold theirs; the next forward pass makes new ones
  }
  if (!status.ok()) ThrowUnlessOk(status, "gathering the parameters from " + parameters_.front().name);
}

void FsdpUnit::ReshardAfterForward(StoragePool& pool) {
  at::Tensor kept;
  if (backward_ranks_ > 0 && !parameters_.empty()) {
    FinishUnshard();
    const int64_t part = padded_numel() / backward_ranks_;
    kept = full_.narrow(0, part * (rank_ % backward_ranks_), part).clone();
  }
  Reshard(pool);
  kept_ = std::move(kept);
}

void FsdpUnit::WriteBack() {
  if (resident_ || parameters_.empty() || !unsharded()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor mine = full_.narrow(0, rank_ * shard_.numel(), shard_.numel());
  if (mine.scalar_type() == shard_.scalar_type()) {
    shard_.copy_(mine);
    return;
  }
  // What nobody has changed keeps the bits that the compute type can't hold.
  const at::Tensor before = shard_.to(mine.device());
  const at::Tensor changed = mine.ne(before.to(mine.scalar_type()));
  if (changed.any().item<bool>()) shard_.copy_(at::where(changed, mine.to(before.scalar_type()), before));
}

void FsdpUnit::AddGradientHooks(const std::shared_ptr<FsdpRoot>& root) {
  for (int i = 0; i < static_cast<int>(parameters_.size()); ++i) {
    if (!parameters_[i].tensor.requires_grad()) continue;
    // A change of type gives the parameter a new accumulator; the graph before it holds on to the old one.
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[i].tensor);
    if (!accumulators_[i].empty() && accumulators_[i].back() == accumulator) continue;
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak_root = std::weak_ptr<FsdpRoot>(root), weak = weak_from_this(), i](
            const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          const auto live_root = weak_root.lock();
          const auto unit = weak.lock();
          if (live_root != nullptr && unit != nullptr) live_root->OnGradient(*unit, i);
          return outputs;
        }));
    accumulators_[i].push_back(std::move(accumulator));
  }
}

void FsdpUnit::BeginBackward() {
  if (grads_aside_) return;
  grads_aside_ = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    saved_grads_[i] = std::exchange(parameters_[i].tensor.mutable_grad(), at::Tensor());
  }
}

void FsdpUnit::TakeGradient(int index, double share) {
  const at::NoGradGuard no_grad;
  FsdpParameter& parameter = parameters_[index];
  const at::Tensor grad = std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  if (grad.defined()) {
    TORCH_CHECK(grad.layout() == at::kStrided, "FullyShardedDataParallel: the gradient of ", parameter.name,
                " is sparse; only dense gradients are reduced");
    TORCH_CHECK(!released_, "FullyShardedDataParallel: parameter ", parameter.name,
                " got another gradient after those of its unit were complete and reduced. A checkpointed function that "
                "is called several times in one run of a unit must be a unit of its own; and a graph that had a "
                "backward pass can't share another one with a later forward pass.");
    if (!flat_grad_.defined()) flat_grad_ = NewFlatGradient();
    if (filled_[index] || !FillSlot(SlotIn(flat_grad_, parameter.offset, parameter.numel), grad, share)) {
      AddToFlatGradient(index, grad, share);
    }
    filled_[index] = true;
  }
  if (!seen_[index]) --pending_;
  seen_[index] = true;
}

void FsdpUnit::AddToFlatGradient(int index, const at::Tensor& grad, double share) {
  const FsdpParameter& parameter = parameters_[index];
  at::Tensor place = flat_grad_.narrow(0, parameter.offset, parameter.numel).view(parameter.sizes);
  const bool small = grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16;
  if (filled_[index]) {
    place.add_(small ? grad.to(at::kFloat) : grad, share);
  } else if (small || grad.scalar_type() != place.scalar_type()) {
    place.copy_(grad.to(at::kFloat).mul_(share));  // rounded once, after the division
  } else {
    at::mul_out(place, grad, at::scalar_tensor(share, grad.options().requires_grad(false)));
  }
}

at::Tensor FsdpUnit::NewFlatGradient() const {
  const at::TensorOptions options = full_.options().dtype(reduce_type());
  return flat_pool_ != nullptr ? flat_pool_->Take(padded_numel(), options) : at::empty({padded_numel()}, options);
}

at::Tensor FsdpUnit::ZeroFlatGradient() const { return NewFlatGradient().zero_(); }

at::Tensor FsdpUnit::ReleaseFlatGradient() {
  released_ = true;
  if (!flat_grad_.defined()) return ZeroFlatGradient();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!filled_[i]) flat_grad_.narrow(0, parameters_[i].offset, parameters_[i].numel).zero_();
  }
  const int64_t used = parameters_.back().offset + parameters_.back().numel;
  if (used < flat_grad_.numel()) flat_grad_.narrow(0, used, flat_grad_.numel() - used).zero_();
  filled_.assign(parameters_.size(), false);
  return std::exchange(flat_grad_, at::Tensor());
}

void FsdpUnit::ScaleFlatGradient(double factor) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (filled_[i]) flat_grad_.narrow(0, parameters_[i].offset, parameters_[i].numel).mul_(factor);
  }
}

void FsdpUnit::DropFlatGradient() {
  filled_.assign(parameters_.size(), false);
  flat_grad_ = at::Tensor();
}

void FsdpUnit::ExpectAllGradients() {
  trainable_ = 0;
  for (const FsdpParameter& parameter : parameters_) trainable_ += parameter.tensor.requires_grad() ? 1 : 0;
  pending_ = trainable_;
  seen_.assign(parameters_.size(), false);
  released_ = false;
}

void FsdpUnit::SetShardGradients(const at::Tensor& reduced) {
  const at::NoGradGuard no_grad;
  BeginBackward();
  const bool as_shard = reduced.scalar_type() == shard_.scalar_type() && reduced.device() == shard_.device();
  const at::Tensor own = as_shard ? reduced : reduced.to(shard_.device(), shard_.scalar_type());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    FsdpParameter& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad()) continue;
    at::Tensor saved = std::exchange(saved_grads_[i], at::Tensor());
    const at::Tensor part = LocalView(own, parameter);
    parameter.tensor.mutable_grad() = saved.defined() ? saved.add_(part) : part;
  }
  grads_aside_ = false;
}

void FsdpUnit::DropShardGradients() {
  for (FsdpParameter& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
}

void FsdpUnit::RestoreShardGradients() {
  if (!grads_aside_) return;
  grads_aside_ = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.mutable_grad() = std::exchange(saved_grads_[i], at::Tensor());
  }
}

}  // namespace cohort::trainer
