#include "cohort/comm/group/batch_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/comm/group/local_call.h"
#include "cohort/comm/group/make_call.h"
#include "cohort/comm/group/mix_hash.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

// A call of more bytes gains nothing from company that would pay for copying it twice; neither does more in all.
constexpr int64_t kGatheredCallBytes = 8 * 1024;
constexpr int64_t kGatheredBytes = 64 * 1024;

}  // namespace

bool GatheredCall::Fits(const CallArguments& arguments, const CallOptions& options) {
  return arguments.kind == CollectiveKind::kAllReduce && arguments.in.memory == MemoryKind::kHost &&
         arguments.in.count >= 0 && arguments.in.count <= kGatheredCallBytes &&
         arguments.in.count * static_cast<int64_t>(SizeOf(arguments.in.dtype)) <= kGatheredCallBytes &&
         options.algorithm.empty() && arguments.op != ReduceOp::kPreMulSum && arguments.op != ReduceOp::kUser;
}

void GatheredCall::Begin(const BatchedCall& first, Determinism determinism) {
  arguments_ = first.arguments;
  options_ = first.options;
  determinism_ = determinism;
  parts_.clear();
  parts_hash_ = 0;
  count_ = 0;
  Add(first);
}

bool GatheredCall::Add(const BatchedCall& call) {
  const CallArguments& arguments = call.arguments;
  if ((count_ + arguments.in.count) * static_cast<int64_t>(SizeOf(arguments.in.dtype)) > kGatheredBytes) return false;
  options_.timeout = std::min(options_.timeout, call.options.timeout);
  parts_.push_back({arguments.in.data, arguments.out.data, arguments.in.count, call.options.tag});
  count_ += arguments.in.count;
  return true;
}

void GatheredCall::Close() {
  if (parts_.size() == 1) return;
  const size_t bytes = static_cast<size_t>(count_) * SizeOf(arguments_.in.dtype);
  if (memory_ == nullptr || memory_bytes_ < bytes) {
    memory_bytes_ = bytes;
    memory_ = std::make_unique<std::byte[]>(bytes);
  }
  for (const Part& part : parts_) {
    parts_hash_ = MixHash(MixHash(parts_hash_, static_cast<uint64_t>(part.count) + 1), part.tag);
  }
  arguments_.in.data = arguments_.out.data = memory_.get();
  arguments_.in.count = arguments_.out.count = count_;
}

void GatheredCall::Pack() {
  if (parts_.size() == 1) return;
  std::byte* to = memory_.get();
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * SizeOf(arguments_.in.dtype);
    if (bytes > 0) std::memcpy(to, part.in, bytes);
    to += bytes;
  }
}

void GatheredCall::Unpack() const {
  if (parts_.size() == 1) return;
  const size_t size = SizeOf(arguments_.in.dtype);
  const std::byte* from = memory_.get();
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * size;
    if (bytes > 0) std::memcpy(part.out, from, bytes);
    from += bytes;
  }
}

void BatchState::Begin(size_t calls) {
  if (parts_.size() < calls) parts_.resize(calls);
  parts_used_ = 0;
  providers_.clear();
  gathered_used_ = 0;
  open_gathered_.clear();
  if (listeners_.size() < calls) listeners_.resize(calls);
  listeners_used_ = 0;
  under_way_ = 1;
  recorded_ = 0;
  awaited_ = {};
  error_ = absl::OkStatus();
}

absl::Status BatchState::Make(std::span<const BatchedCall> calls, const GroupContext& group, Makers makers) {
  Begin(calls.size());
  for (const BatchedCall& call : calls) {
    if (group.size > 1 && GatheredCall::Fits(call.arguments, call.options)) {
      COHORT_RETURN_IF_ERROR(Gather(call, group, makers));
      continue;
    }
    BatchedPart& part = NextPart();
    part.arguments = &call.arguments;
    part.options = &call.options;
    part.shaped = HasUnequalBlocks(call.arguments.kind);
    part.shape = {call.in_blocks(), call.out_blocks()};
    part.gathered = nullptr;
    COHORT_RETURN_IF_ERROR(MakePart(group, makers, &part));
  }
  for (GatheredCall* gathered : open_gathered_) COHORT_RETURN_IF_ERROR(AddGathered(*gathered, group, makers));
  return absl::OkStatus();
}

absl::Status BatchState::Gather(const BatchedCall& call, const GroupContext& group, Makers makers) {
  CollectiveRequest request;
  COHORT_RETURN_IF_ERROR(MakeRequest(call.arguments, group.rank, group.size, &request));
  COHORT_RETURN_IF_ERROR(ApplyOptions(call.options, group.determinism, &request));
  const auto same = std::find_if(open_gathered_.begin(), open_gathered_.end(), [&](const GatheredCall* open) {
    return open->GoesWith(call.arguments, request.determinism);
  });
  if (same != open_gathered_.end()) {
    GatheredCall& open = **same;
    if (open.Add(call)) return absl::OkStatus();
    open_gathered_.erase(same);
    COHORT_RETURN_IF_ERROR(AddGathered(open, group, makers));
  }
  if (gathered_used_ == gathered_.size()) gathered_.push_back(std::make_unique<GatheredCall>());
  GatheredCall& opened = *gathered_[gathered_used_++];
  opened.Begin(call, request.determinism);
  open_gathered_.push_back(&opened);
  return absl::OkStatus();
}

absl::Status BatchState::AddGathered(GatheredCall& gathered, const GroupContext& group, Makers makers) {
  gathered.Close();
  BatchedPart& part = NextPart();
  part.arguments = &gathered.arguments();
  part.options = &gathered.options();
  part.shaped = gathered.parts() != 0;
  part.shape = {.parts = gathered.parts()};
  part.gathered = &gathered;
  return MakePart(group, makers, &part);
}

BatchedPart& BatchState::NextPart() { return parts_[parts_used_++]; }

absl::Status BatchState::MakePart(const GroupContext& group, Makers makers, BatchedPart* part) {
  Provider* provider = nullptr;
  const RememberedCall* const known = makers.memo.Find(*part->arguments, *part->options, part->shape_or_null());
  part->known = known != nullptr;
  if (known != nullptr) {
    provider = known->provider;
  } else {
    COHORT_RETURN_IF_ERROR(MakeCall(group, makers.providers, makers.recorder,
                                    {*part->arguments, *part->options, part->shape_or_null()}, &part->made));
    provider = part->made->provider;
  }
  if (provider == nullptr) return absl::OkStatus();
  ++recorded_;
  if (std::find(providers_.begin(), providers_.end(), provider) == providers_.end()) providers_.push_back(provider);
  return absl::OkStatus();
}

void BatchState::Run(const RunPart& run) {
  for (Provider* provider : providers_) provider->BatchBegin();
  for (size_t i = 0; i < parts_used_; ++i) {
    BatchedPart& part = parts_[i];
    if (part.gathered != nullptr) part.gathered->Pack();
    Add(run(part), part.gathered);
  }
  for (Provider* provider : providers_) provider->BatchEnd();
}

void BatchState::Add(runtime::Work work, const GatheredCall* gathered) {
  ++under_way_;
  Listener& listener = listeners_[listeners_used_++];
  listener.Hear(this, gathered);
  work.Notify(&listener);
}

void BatchState::Finished(const absl::Status& status) {
  if (error_.ok()) error_ = status;
  if (--under_way_ > 0) return;
  CompleteAndDrop(error_);
}

}  // namespace cohort::comm
