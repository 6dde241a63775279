#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/trainer/autograd/gradient_slot.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/parallel/fsdp/fsdp_root.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/device_stream.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "cohort/trainer/transfer/storage_pool.h"
#include "cohort/trainer/transfer/window_pool.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// In host memory, of a parameter with its padding: what is larger is gathered by a call of its own. A call costs the
// host some microseconds, and so does copying as much.
constexpr int64_t kMostStagedBytes = 64 << 10;

bool ReshardsAfterForward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

// Elements of one vector to another of the same type; without torch's dispatch where that is possible.
void CopyElements(const at::Tensor& from, int64_t begin, const at::Tensor& to, int64_t place, int64_t count) {
  if (!from.device().is_cpu() || !to.device().is_cpu()) {
    to.narrow(0, place, count).copy_(from.narrow(0, begin, count), /*non_blocking=*/true);
    return;
  }
  const auto size = static_cast<int64_t>(from.element_size());
  std::memcpy(static_cast<char*>(to.data_ptr()) + place * size,
              static_cast<const char*>(from.data_ptr()) + begin * size, static_cast<size_t>(count * size));
}

// Elements [offset, offset + count) of a buffer.
comm::Buffer Slice(comm::Buffer buffer, int64_t offset, int64_t count) {
  buffer.data = static_cast<char*>(buffer.data) + offset * static_cast<int64_t>(comm::SizeOf(buffer.dtype));
  buffer.count = count;
  return buffer;
}

}  // namespace

// Ranks that differ in what is frozen would make different calls.
std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes) {
  return DescribeTensor(parameter.name, parameter.tensor.scalar_type(), sizes) +
         (parameter.tensor.requires_grad() ? "" : " (frozen)");
}

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
  for (FsdpParameter& parameter : parameters_) {
    const at::Tensor& first = parameters_.front().tensor;
    const bool one_device = options_.device_id.has_value() || parameter.tensor.device() == first.device();
    TORCH_CHECK(parameter.tensor.scalar_type() == first.scalar_type() && one_device,
                "FullyShardedDataParallel: parameters ", parameters_.front().name, " (", first.scalar_type(), " on ",
                first.device(), ") and ", parameter.name, " (", parameter.tensor.scalar_type(), " on ",
                parameter.tensor.device(), ") can't share a vector; wrap their modules one by one");
    parameter.sizes = parameter.tensor.sizes().vec();
    parameter.numel = parameter.tensor.numel();
    parameter.chunk = RowChunkNumel(parameter.sizes, shards_);
    parameter.own = RowChunkOf(parameter.sizes, shards_, rank_);
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

// Where chunks lie in a shard, and by which calls they are gathered.
void FsdpUnit::LayOut(bool on_host) {
  const int64_t most = kMostStagedBytes / static_cast<int64_t>(c10::elementSize(compute_type()));
  const auto small = [&](const FsdpParameter& each) { return each.chunk * shards_ <= most; };
  const auto worth_it = std::count_if(parameters_.begin(), parameters_.end(),
                                      [&](const auto& each) { return each.chunk > 0 && small(each); });
  const bool stages = on_host && shards_ > 1 && worth_it > 1;
  int64_t offset = 0;
  for (const bool staged : {true, false}) {
    for (FsdpParameter& parameter : parameters_) {
      if ((stages && small(parameter)) != staged) continue;
      parameter.offset = std::exchange(offset, offset + parameter.chunk);
      if (!staged && parameter.chunk > 0) {
        gather_calls_.push_back({parameter.offset, parameter.chunk, PlaceOf(parameter)});
      }
    }
    if (!staged || offset == 0) continue;
    staged_numel_ = offset;
    gather_calls_.push_back({0, staged_numel_, padded_numel()});
  }
}

void FsdpUnit::Shard() {
  const at::Tensor& any = parameters_.front().tensor;
  const at::TensorOptions own = any.options().requires_grad(false).device(options_.device_id.value_or(any.device()));
  const bool offloads = options_.cpu_offload && own.device().is_cuda();
  int64_t numel = 0;
  for (const FsdpParameter& parameter : parameters_) numel += parameter.chunk;
  shard_ = at::zeros({numel}, offloads ? own.device(at::kCPU).pinned_memory(true) : own);
  LayOut(own.device().is_cpu());
  for (const FsdpParameter& parameter : parameters_) {
    const auto& [sizes, begin, end] = parameter.own;
    at::Tensor mine = LocalView(shard_, parameter);
    if (HasData(parameter.tensor)) {
      mine.copy_(parameter.tensor.reshape({-1}).narrow(0, begin, end - begin).view(sizes));
    } else {
      mine.copy_(WithoutValues(mine.sizes(), own.device(at::kCPU)));
    }
  }
  resident_ = shards_ == 1 && compute_type() == shard_.scalar_type() && !offloads;
  full_ = resident_ ? shard_ : at::empty({padded_numel() + staged_numel_ * shards_}, own.dtype(compute_type()));
  for (FsdpParameter& parameter : parameters_) {
    full_views_.push_back(full_.narrow(0, PlaceOf(parameter), parameter.numel).view(parameter.sizes));
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
  const auto& [sizes, begin, end] = parameter.own;
  auto part = shard.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                   /*allow_tensor_metadata_change=*/true);
  part->set_autograd_meta(nullptr);
  if (end > begin) part->set_storage_offset(shard.storage_offset() + parameter.offset);  // else it may be outside
  part->set_sizes_contiguous(sizes);
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
  full_streams_.Enter(full_);
  if (shards_ == 1) {
    full_.copy_(shard_, /*non_blocking=*/true);
  } else if (kept_numel() > 0) {
    gather_ = StartGather(*neighbours, kept_, shards_ / backward_ranks_);
  } else if (same_kind()) {
    gather_ = StartGather(group, shard_, 1);
  } else {
    for (const auto& [offset, count, place] : gather_calls_) {
      full_.narrow(0, place + rank_ * count, count).copy_(shard_.narrow(0, offset, count), /*non_blocking=*/true);
    }
    gather_ = StartGather(group, at::Tensor(), 1);
  }
}

// Of `part`, which has so many neighbouring ranks' chunks of each parameter; undefined: this rank's one, which lies
// where it belongs already.
runtime::Work FsdpUnit::StartGather(comm::Communicator& group, const at::Tensor& part, int64_t chunks) {
  gathered_chunks_ = chunks;
  if (gather_calls_.empty()) return {};
  const comm::Buffer full = AsBuffer(full_), own = part.defined() ? AsBuffer(part) : comm::Buffer();
  std::vector<CallBuffers> calls;
  calls.reserve(gather_calls_.size());
  for (const auto& [offset, count, place] : gather_calls_) {
    const comm::Buffer out = Slice(full, place, count * shards_);
    calls.push_back(
        {part.defined() ? Slice(own, offset * chunks, count * chunks) : Slice(out, rank_ * count, count), out});
  }
  return AllGathers(group, calls);
}

// Each parameter's chunks, which lie there rank by rank, to its place.
void FsdpUnit::CopyFromStaging() {
  if (staged_numel_ == 0) return;
  for (const FsdpParameter& parameter : parameters_) {
    if (parameter.offset >= staged_numel_) continue;
    const int64_t count = parameter.chunk * gathered_chunks_;
    int64_t from = padded_numel() + parameter.offset * gathered_chunks_;
    for (int64_t done = 0; done < parameter.numel; done += count, from += staged_numel_ * gathered_chunks_) {
      CopyElements(full_, from, full_, PlaceOf(parameter) + done, count);
    }
  }
}

void FsdpUnit::FinishUnshard() {
  if (state_ != State::kGathering) return;
  if (full_.defined()) full_streams_.Enter(full_);  // of one shard nothing is gathered: a stream has copied it
  const absl::Status status = AwaitOnStream(gather_, full_);
  if (gather_.Done()) {  // else Reshard waits, so that the host is at most a unit ahead of a device
    gather_ = runtime::Work();
    kept_ = at::Tensor();
  }
  if (!status.ok()) ThrowUnlessAllCame(status, "gathering the parameters from " + parameters_.front().name);
  CopyFromStaging();
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
  if (!status.ok()) ThrowUnlessAllCame(status, "gathering the parameters from " + parameters_.front().name);
}

void FsdpUnit::ReshardAfterForward(StoragePool& pool) {
  at::Tensor kept;
  if (backward_ranks_ > 0 && !parameters_.empty()) {
    FinishUnshard();
    const int64_t chunks = shards_ / backward_ranks_;
    kept = at::empty({shard_numel() * chunks}, full_.options());
    for (const FsdpParameter& parameter : parameters_) {
      const int64_t count = parameter.chunk * chunks;
      CopyElements(full_, PlaceOf(parameter) + rank_ % backward_ranks_ * count, kept, parameter.offset * chunks, count);
    }
  }
  Reshard(pool);
  kept_ = std::move(kept);
}

void FsdpUnit::WriteBack() {
  if (resident_ || parameters_.empty() || !unsharded()) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [sizes, begin, end] = parameters_[i].own;
    const at::Tensor mine = full_views_[i].view({-1}).narrow(0, begin, end - begin).view(sizes);
    at::Tensor own = LocalView(shard_, parameters_[i]);
    if (mine.scalar_type() == own.scalar_type()) {
      own.copy_(mine);
      continue;
    }
    // What nobody has changed keeps the bits that the compute type can't hold.
    const at::Tensor before = own.to(mine.device());
    const at::Tensor changed = mine.ne(before.to(mine.scalar_type()));
    if (changed.any().item<bool>()) own.copy_(at::where(changed, mine.to(before.scalar_type()), before));
  }
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

bool FsdpUnit::borrowed() const {
  if (resident_ || !full_.defined() || !unsharded()) return false;
  return full_.storage().use_count() > 1 + full_views_.size() + parameters_.size();  // which are the unit's own
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
    flat_streams_.Enter(flat_grad_);
    if (filled_[index] || !FillSlot(SlotOf(parameter), grad, share)) AddToFlatGradient(index, grad, share);
    filled_[index] = true;
  }
  if (!seen_[index]) --pending_;
  seen_[index] = true;
}

GradientSlot FsdpUnit::SlotOf(const FsdpParameter& parameter) const {
  return SlotIn(flat_grad_, parameter.offset, parameter.numel, parameter.chunk, shard_numel());
}

// In two parts: the ranks whose chunks have as many rows as the first one's, and the one that has fewer.
void FsdpUnit::AddToFlatGradient(int index, const at::Tensor& grad, double share) {
  const FsdpParameter& parameter = parameters_[index];
  if (parameter.numel == 0) return;
  const at::Tensor rows = grad.dim() == 0 ? grad.view({1}) : grad;
  const int64_t each = parameter.chunk * rows.size(0) / parameter.numel, even = rows.size(0) / each;
  AddRows(index, rows.narrow(0, 0, even * each), 0, even, share);
  const int64_t rest = rows.size(0) - even * each;
  if (rest > 0) AddRows(index, rows.narrow(0, even * each, rest), even, 1, share);
}

// Rows that `ranks` ranks from number `first` on share evenly.
void FsdpUnit::AddRows(int index, const at::Tensor& rows, int64_t first, int64_t ranks, double share) {
  std::vector<int64_t> sizes = rows.sizes().vec(), strides(sizes.size(), 1);
  sizes.front() /= ranks;
  for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
  sizes.insert(sizes.begin(), ranks);
  strides.insert(strides.begin(), shard_numel());
  at::Tensor place = flat_grad_.as_strided(sizes, strides, first * shard_numel() + parameters_[index].offset);
  const at::Tensor grad = rows.reshape(sizes);
  const bool small = grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16;
  if (filled_[index]) {
    place.add_(small ? grad.to(at::kFloat) : grad, share);
  } else if (small || grad.scalar_type() != place.scalar_type()) {
    place.copy_(grad.to(at::kFloat).mul_(share));  // rounded once, after the division
  } else {
    at::mul_out(place, grad, at::scalar_tensor(share, at::TensorOptions(grad.scalar_type())));  // no kernel
  }
}

// A parameter's chunks in the flat gradient.
at::Tensor FsdpUnit::BlocksOf(const FsdpParameter& parameter) const {
  return flat_grad_.view({shards_, shard_numel()}).narrow(1, parameter.offset, parameter.chunk);
}

// Padding is written once on devices, where each little piece would cost a kernel, and before each reduction on the
// host, whose windows have held other units.
at::Tensor FsdpUnit::NewFlatGradient() const {
  const at::TensorOptions options = full_.options().dtype(reduce_type());
  const auto padded = [this](const FsdpParameter& each) { return each.numel < each.chunk * shards_; };
  if (!options.device().is_cpu() && std::any_of(parameters_.begin(), parameters_.end(), padded)) {
    return at::zeros({padded_numel()}, options);
  }
  return flat_pool_ != nullptr ? flat_pool_->Take(padded_numel(), options) : at::empty({padded_numel()}, options);
}

void FsdpUnit::ZeroPadding() const {
  if (!flat_grad_.device().is_cpu()) return;
  const auto size = static_cast<int64_t>(flat_grad_.element_size());
  for (const FsdpParameter& parameter : parameters_) {
    if (parameter.numel == parameter.chunk * shards_) continue;
    auto* chunk = static_cast<char*>(flat_grad_.data_ptr()) + parameter.offset * size;
    for (int rank = 0; rank < shards_; ++rank, chunk += shard_numel() * size) {
      const int64_t used = std::clamp<int64_t>(parameter.numel - rank * parameter.chunk, 0, parameter.chunk);
      std::memset(chunk + used * size, 0, static_cast<size_t>((parameter.chunk - used) * size));
    }
  }
}

at::Tensor FsdpUnit::ZeroFlatGradient() const { return NewFlatGradient().zero_(); }

at::Tensor FsdpUnit::ReleaseFlatGradient() {
  released_ = true;
  if (!flat_grad_.defined()) return ZeroFlatGradient();
  const at::NoGradGuard no_grad;
  flat_streams_.Enter(flat_grad_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!filled_[i]) BlocksOf(parameters_[i]).zero_();
  }
  ZeroPadding();
  filled_.assign(parameters_.size(), false);
  return std::exchange(flat_grad_, at::Tensor());
}

void FsdpUnit::ScaleFlatGradient(double factor) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (filled_[i]) BlocksOf(parameters_[i]).mul_(factor);
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
