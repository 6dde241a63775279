#include "cohort/comm/group/batch_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/comm/group/local_call.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

// A call of more bytes gains nothing from company that would pay for copying it twice; neither does more in all.
constexpr int64_t kGatheredCallBytes = 8 * 1024;
constexpr int64_t kGatheredBytes = 64 * 1024;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

}  // namespace

bool GatheredCall::Fits(const CollectiveRequest& request, const CallOptions& options) {
  return request.kind == CollectiveKind::kAllReduce && request.memory == MemoryKind::kHost &&
         BytesOf(request) <= kGatheredCallBytes && options.algorithm.empty() && request.op != ReduceOp::kPreMulSum &&
         request.op != ReduceOp::kUser;
}

void GatheredCall::Begin(const CollectiveRequest& first, const CallOptions& options) {
  first_ = first;
  options_ = options;
  parts_.clear();
  count_ = 0;
  Add(first, options);
}

bool GatheredCall::Add(const CollectiveRequest& request, const CallOptions& options) {
  const auto size = static_cast<int64_t>(SizeOf(request.dtype));
  if ((count_ + request.count) * size > kGatheredBytes) return false;
  options_.timeout = std::min(options_.timeout, options.timeout);
  parts_.push_back({request.in, request.out, request.count, request.tag});
  count_ += request.count;
  return true;
}

CollectiveRequest GatheredCall::Pack() {
  CollectiveRequest request = first_;
  if (parts_.size() == 1) return request;
  const size_t size = SizeOf(first_.dtype);
  if (memory_bytes_ < static_cast<size_t>(count_) * size) {
    memory_bytes_ = static_cast<size_t>(count_) * size;
    memory_ = std::make_unique<std::byte[]>(memory_bytes_);
  }
  std::byte* to = memory_.get();
  request.parts = 0;
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * size;
    if (bytes > 0) std::memcpy(to, part.in, bytes);
    to += bytes;
    request.parts = Mix(Mix(request.parts, static_cast<uint64_t>(part.count) + 1), part.tag);
  }
  request.in = request.out = memory_.get();
  request.in_place = true;
  request.count = count_;
  return request;
}

void GatheredCall::Unpack() const {
  if (parts_.size() == 1) return;
  const size_t size = SizeOf(first_.dtype);
  const std::byte* from = memory_.get();
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * size;
    if (bytes > 0) std::memcpy(part.out, from, bytes);
    from += bytes;
  }
}

void BatchState::Begin(size_t calls) {
  requests_.clear();
  requests_.reserve(calls);
  providers_.clear();
  if (tables_.size() < calls) tables_.resize(calls);
  tables_used_ = 0;
  gathered_used_ = 0;
  open_gathered_.clear();
  if (listeners_.size() < calls) listeners_.resize(calls);
  listeners_used_ = 0;
  under_way_ = 1;
  recorded_ = 0;
  awaited_ = {};
  error_ = absl::OkStatus();
}

GatheredCall* BatchState::Open(const CollectiveRequest& request) {
  const auto found = std::find_if(open_gathered_.begin(), open_gathered_.end(),
                                  [&](const GatheredCall* gathered) { return gathered->GoesWith(request); });
  return found == open_gathered_.end() ? nullptr : *found;
}

GatheredCall& BatchState::OpenNew(const CollectiveRequest& request, const CallOptions& options) {
  if (gathered_used_ == gathered_.size()) gathered_.push_back(std::make_unique<GatheredCall>());
  GatheredCall& gathered = *gathered_[gathered_used_++];
  gathered.Begin(request, options);
  open_gathered_.push_back(&gathered);
  return gathered;
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

absl::Status BatchState::Check(std::span<const BatchedCall> calls, const GroupContext& group,
                               GroupProviders& providers) {
  for (const BatchedCall& call : calls) {
    CollectiveRequest& request = requests_.emplace_back();
    if (HasUnequalBlocks(call.arguments.kind)) {
      COHORT_RETURN_IF_ERROR(MakeUnequalRequest(call.arguments, call.in_blocks(), call.out_blocks(), group.rank,
                                                group.size, &tables_[tables_used_++], &request));
    } else {
      COHORT_RETURN_IF_ERROR(MakeRequest(call.arguments, group.rank, group.size, &request));
    }
    COHORT_RETURN_IF_ERROR(ApplyOptions(call.options, group.determinism, &request));
    if (ServedAlone(group, request)) {
      COHORT_RETURN_IF_ERROR(CheckNameAlone(group, request.kind, call.options));
      continue;
    }
    const absl::StatusOr<Provider*> provider = providers.For(request);
    if (!provider.ok()) return provider.status();
    const absl::StatusOr<ServicePlan> service = (*provider)->Choose(request, call.options.algorithm);
    if (!service.ok()) return service.status();
    if (std::find(providers_.begin(), providers_.end(), *provider) == providers_.end()) {
      providers_.push_back(*provider);
    }
  }
  return absl::OkStatus();
}

void BatchState::Start(std::span<const BatchedCall> calls, const GroupContext& group, const Submit& submit) {
  const auto start = [&](GatheredCall* gathered) {
    ++recorded_;
    Add(submit(gathered->Pack(), gathered->options()), gathered);
  };
  for (Provider* provider : providers_) provider->BatchBegin();
  for (size_t i = 0; i < calls.size(); ++i) {
    const CollectiveRequest& request = requests_[i];
    const CallOptions& options = calls[i].options;
    if (ServedAlone(group, request) || !GatheredCall::Fits(request, options)) {
      if (!ServedAlone(group, request)) ++recorded_;
      Add(submit(request, options), nullptr);
      continue;
    }
    GatheredCall* same = Open(request);
    if (same != nullptr && same->Add(request, options)) continue;
    if (same != nullptr) {
      std::erase(open_gathered_, same);
      start(same);
    }
    OpenNew(request, options);
  }
  for (GatheredCall* gathered : open_gathered_) start(gathered);
  for (Provider* provider : providers_) provider->BatchEnd();
}

}  // namespace cohort::comm
