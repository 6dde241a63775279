#include "comm/batch_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cohort::comm {
namespace {

// A call of more bytes gains nothing from company that would pay for copying it twice; neither does more in all.
constexpr int64_t kGatheredCallBytes = 8 * 1024;
constexpr int64_t kGatheredBytes = 64 * 1024;

int64_t BytesOf(const CollectiveRequest& request) {
  return request.count * static_cast<int64_t>(SizeOf(request.dtype));
}

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

bool GatheredCall::Add(const CollectiveRequest& request, const CallOptions& options) {
  const auto size = static_cast<int64_t>(SizeOf(request.dtype));
  if (!GoesWith(request) || (count_ + request.count) * size > kGatheredBytes) return false;
  options_.timeout = std::min(options_.timeout, options.timeout);
  parts_.push_back({request.in, request.out, request.count});
  count_ += request.count;
  return true;
}

CollectiveRequest GatheredCall::Pack() {
  CollectiveRequest request = first_;
  if (parts_.size() == 1) return request;
  const size_t size = SizeOf(first_.dtype);
  memory_ = std::make_unique<std::byte[]>(static_cast<size_t>(count_) * size);
  std::byte* to = memory_.get();
  request.parts = 0;
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * size;
    if (bytes > 0) std::memcpy(to, part.in, bytes);
    to += bytes;
    request.parts = Mix(request.parts, static_cast<uint64_t>(part.count) + 1);
  }
  request.in = request.out = memory_.get();
  request.in_place = true;
  request.count = count_;
  return request;
}

void GatheredCall::Unpack() const {
  if (memory_ == nullptr) return;
  const size_t size = SizeOf(first_.dtype);
  const std::byte* from = memory_.get();
  for (const Part& part : parts_) {
    const size_t bytes = static_cast<size_t>(part.count) * size;
    if (bytes > 0) std::memcpy(part.out, from, bytes);
    from += bytes;
  }
}

void BatchState::Add(runtime::Work work, std::unique_ptr<GatheredCall> gathered) {
  ++open_;
  // A std::function must be copyable, and the memory must live as long as the call.
  work.Then([self = runtime::Work(this), this,
             kept = std::shared_ptr<GatheredCall>(std::move(gathered))](const absl::Status& status) {
    if (kept != nullptr && status.ok()) kept->Unpack();
    Finished(status);
  });
}

void BatchState::Finished(const absl::Status& status) {
  if (error_.ok()) error_ = status;
  if (--open_ == 0) Complete(error_);
}

// The engine lives as long as a call is under way: its group finishes all of them before it goes.
void BatchState::Wait(runtime::Deadline deadline) {
  if (done()) return;
  engine_->DriveUntil([this] { return done(); }, deadline, source_);
}

}  // namespace cohort::comm
