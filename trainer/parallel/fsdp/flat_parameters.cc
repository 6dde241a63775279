#include "cohort/trainer/parallel/fsdp/flat_parameters.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/tensor_values.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/storage_pool.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Parameters in host memory that are larger than this with their padding are gathered by calls of their own. A call
// costs the host some microseconds, as copying this many bytes does.
constexpr int64_t kMostStagedBytes = 64 << 10;

// Copies elements between vectors of one type; without torch's dispatch where both are in host memory.
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

FlatParameters::FlatParameters(std::vector<FsdpParameter>& parameters, int shards, int rank, int backward_ranks,
                               const FullyShardedDataParallelOptions& options)
    : parameters_(parameters), shards_(shards), rank_(rank), backward_ranks_(backward_ranks) {
  if (!parameters_.empty()) MakeVectors(options);
}

FlatParameters::~FlatParameters() {
  const absl::Status ignored = gather_.Wait();  // which writes into full_
  (void)ignored;
}

void FlatParameters::Become(State next) {
  const bool legal = next == State::kSharded     ? state_ != State::kSharded
                     : next == State::kGathering ? state_ == State::kSharded
                                                 : state_ == State::kGathering;
  TORCH_INTERNAL_ASSERT(legal, "a unit's parameters go from state ", static_cast<int>(state_), " to ",
                        static_cast<int>(next));
  state_ = next;
}

// Decides where chunks lie in a shard, and which calls gather them.
void FlatParameters::LayOut(bool on_host, at::ScalarType compute_type) {
  const int64_t most = kMostStagedBytes / static_cast<int64_t>(c10::elementSize(compute_type));
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

void FlatParameters::MakeVectors(const FullyShardedDataParallelOptions& options) {
  const at::Tensor& any = parameters_.front().tensor;
  const at::TensorOptions own = any.options().requires_grad(false).device(options.device_id.value_or(any.device()));
  const at::ScalarType compute_type = options.mixed_precision.param_dtype.value_or(any.scalar_type());
  const bool offloads = options.cpu_offload && own.device().is_cuda();
  int64_t numel = 0;
  for (const FsdpParameter& parameter : parameters_) numel += parameter.chunk;
  shard_ = at::zeros({numel}, offloads ? own.device(at::kCPU).pinned_memory(true) : own);
  LayOut(own.device().is_cpu(), compute_type);
  for (const FsdpParameter& parameter : parameters_) {
    const auto& [sizes, begin, end] = parameter.own;
    at::Tensor mine = LocalView(shard_, parameter);
    if (HasData(parameter.tensor)) {
      mine.copy_(parameter.tensor.reshape({-1}).narrow(0, begin, end - begin).view(sizes));
    } else {
      mine.copy_(WithoutValues(mine.sizes(), own.device(at::kCPU)));
    }
  }
  resident_ = shards_ == 1 && compute_type == shard_.scalar_type() && !offloads;
  full_ = resident_ ? shard_ : at::empty({padded_numel() + staged_numel_ * shards_}, own.dtype(compute_type));
  for (FsdpParameter& parameter : parameters_) {
    full_views_.push_back(full_.narrow(0, PlaceOf(parameter), parameter.numel).view(parameter.sizes));
    parameter.tensor.set_data(LocalView(shard_, parameter));
  }
  if (!resident_) StoragePool(0).Detach(full_);
}

bool FlatParameters::borrowed() const {
  if (resident_ || !full_.defined() || state_ != State::kUnsharded) return false;
  return full_.storage().use_count() > 1 + full_views_.size() + parameters_.size();  // which are the unit's own
}

void FlatParameters::EnterWindow(comm::Communicator& group) {
  if (gathers() && same_kind())
    in_window_ = trainer::EnterWindow(group, shard_, "FullyShardedDataParallel: making the memory for shards");
}

void FlatParameters::LeaveWindow() {
  if (std::exchange(in_window_, false)) LeaveWindowForGood(shard_);
}

void FlatParameters::Start(comm::Communicator& group, comm::Communicator* neighbours, StoragePool& pool, uint64_t tag) {
  if (state_ != State::kSharded) return;
  Become(State::kGathering);
  if (resident_ || parameters_.empty()) return;
  const at::NoGradGuard no_grad;
  pool.Attach(full_);
  streams_.Enter(full_);
  if (shards_ == 1) {
    full_.copy_(shard_, /*non_blocking=*/true);
  } else if (kept_numel() > 0) {
    gather_ = StartGather(*neighbours, kept_, shards_ / backward_ranks_, tag);
  } else if (same_kind()) {
    gather_ = StartGather(group, shard_, 1, tag);
  } else {
    for (const auto& [offset, count, place] : gather_calls_) {
      full_.narrow(0, place + rank_ * count, count).copy_(shard_.narrow(0, offset, count), /*non_blocking=*/true);
    }
    gather_ = StartGather(group, at::Tensor(), 1, tag);
  }
}

// `part` has `chunks` neighbouring ranks' chunks of each parameter. Undefined, it is this rank's chunk, which lies
// where it belongs already.
runtime::Work FlatParameters::StartGather(comm::Communicator& group, const at::Tensor& part, int64_t chunks,
                                          uint64_t tag) {
  gathered_chunks_ = chunks;
  if (gather_calls_.empty()) return {};
  // Frozen parameters may be of types that no collective knows: they travel as bytes.
  const at::ScalarType type = full_.scalar_type();
  const auto moved = [&](const at::Tensor& flat) { return AsBuffer(CanCarry(type) ? flat : flat.view(at::kByte)); };
  const int64_t unit = CanCarry(type) ? RealsPerElement(type) : static_cast<int64_t>(full_.element_size());
  const comm::Buffer full = moved(full_), own = part.defined() ? moved(part) : comm::Buffer();
  std::vector<CallBuffers> calls;
  calls.reserve(gather_calls_.size());
  for (const auto& [offset, elements, at] : gather_calls_) {
    const int64_t count = elements * unit;
    const comm::Buffer out = Slice(full, at * unit, count * shards_);
    calls.push_back(
        {part.defined() ? Slice(own, offset * unit * chunks, count * chunks) : Slice(out, rank_ * count, count), out});
  }
  return AllGathers(group, calls, tag);
}

// Copies each parameter's chunks, which lie in staging memory rank by rank, to its place.
void FlatParameters::CopyFromStaging() {
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

void FlatParameters::ThrowUnlessGathered(const absl::Status& status) const {
  if (!status.ok()) ThrowUnlessAllCame(status, "gathering the parameters from " + parameters_.front().name);
}

void FlatParameters::Finish() {
  if (state_ != State::kGathering) return;
  if (full_.defined()) streams_.Enter(full_);  // one shard is not gathered: a stream has copied it
  const absl::Status status = AwaitOnStream(gather_, full_);
  if (gather_.Done()) {  // else Reshard waits, so that the host is at most a unit ahead of a device
    gather_ = runtime::Work();
    kept_ = at::Tensor();
  }
  ThrowUnlessGathered(status);
  CopyFromStaging();
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.set_data(full_views_[i]);
  Become(State::kUnsharded);
}

absl::Status FlatParameters::Reshard(StoragePool& pool) {
  const absl::Status status = gather_.Wait();
  gather_ = runtime::Work();
  kept_ = at::Tensor();
  if (state_ == State::kSharded) return absl::OkStatus();
  if (state_ == State::kUnsharded) {
    for (FsdpParameter& parameter : parameters_) parameter.tensor.set_data(LocalView(shard_, parameter));
  }
  Become(State::kSharded);
  if (!resident_ && !parameters_.empty()) pool.Detach(full_);
  return status;
}

at::Tensor FlatParameters::CopyForNeighbours() {
  if (backward_ranks_ == 0 || parameters_.empty()) return {};
  Finish();
  const int64_t chunks = shards_ / backward_ranks_;
  at::Tensor kept = at::empty({shard_numel() * chunks}, full_.options());
  for (const FsdpParameter& parameter : parameters_) {
    const int64_t count = parameter.chunk * chunks;
    CopyElements(full_, PlaceOf(parameter) + rank_ % backward_ranks_ * count, kept, parameter.offset * chunks, count);
  }
  return kept;
}

void FlatParameters::WriteBack() {
  if (resident_ || parameters_.empty() || state_ != State::kUnsharded) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [sizes, begin, end] = parameters_[i].own;
    const at::Tensor mine = full_views_[i].view({-1}).narrow(0, begin, end - begin).view(sizes);
    at::Tensor own = LocalView(shard_, parameters_[i]);
    if (mine.scalar_type() == own.scalar_type()) {
      own.copy_(mine);
      continue;
    }
    // Elements that nobody has changed keep the bits that the compute type can't hold.
    const at::Tensor before = own.to(mine.device());
    const at::Tensor changed = mine.ne(before.to(mine.scalar_type()));
    if (changed.any().item<bool>()) own.copy_(at::where(changed, mine.to(before.scalar_type()), before));
  }
}

}  // namespace cohort::trainer
