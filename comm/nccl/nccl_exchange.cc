#include "cohort/comm/nccl/nccl_exchange.h"

#include <algorithm>

#include "cohort/comm/nccl/nccl_launch.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {
namespace {

// Operands begin at multiples of this, for the kernel's pieces and the device's memory lines.
constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Both ranks know how much goes either way; what is empty is left out.
void Move(Launch& launch, const std::byte* from, int64_t sent, std::byte* to, int64_t received, int peer) {
  if (sent > 0) launch.Send(from, static_cast<size_t>(sent), ncclUint8, peer);
  if (received > 0) launch.Receive(to, static_cast<size_t>(received), ncclUint8, peer);
}

}  // namespace

NcclExchange::NcclExchange(const CallTarget& target, cuda::ReductionKernels* kernels, const CollectiveRequest* request)
    : target_(target),
      kernels_(*kernels),
      request_(*request),
      scaled_(request->op == ReduceOp::kPreMulSum),
      carried_(scaled_ ? AccumulatorOf(request->dtype) : request->dtype),
      element_(static_cast<int64_t>(SizeOf(carried_))) {}

NcclExchange::Part NcclExchange::PartOf(int rank) const {
  const int64_t count = request_.count;
  switch (request_.kind) {
    case CollectiveKind::kAllReduce: {
      // Parts of equal length but the last ones, which begin at multiples of the kernel's pieces.
      const int64_t piece = static_cast<int64_t>(cuda::kPieceBytes / SizeOf(request_.dtype));
      const int64_t length = RoundUp((count + target_.size - 1) / target_.size, piece);
      const int64_t begin = std::min(length * rank, count);
      return {begin, std::min(length, count - begin)};
    }
    case CollectiveKind::kReduce:
      return {0, rank == request_.root ? count : 0};
    case CollectiveKind::kReduceScatterV:
      return {request_.blocks->in_places[static_cast<size_t>(rank)],
              request_.blocks->in_counts[static_cast<size_t>(rank)]};
    default:  // reduce-scatter
      return {count * rank, count};
  }
}

int64_t NcclExchange::InputElements() const {
  int64_t end = 0;
  for (int rank = 0; rank < target_.size; ++rank) end = std::max(end, PartOf(rank).begin + PartOf(rank).count);
  return end;
}

std::byte* NcclExchange::Result() const {
  auto* out = static_cast<std::byte*>(request_.out);
  const auto bytes = static_cast<int64_t>(SizeOf(request_.dtype));
  if (request_.kind == CollectiveKind::kAllReduce) return out + PartOf(target_.rank).begin * bytes;
  if (request_.kind == CollectiveKind::kReduceScatterV) return out + request_.blocks->out_places[0] * bytes;
  return out;
}

absl::Status NcclExchange::Begin() {
  const int64_t mine = PartOf(target_.rank).count;
  stride_ = RoundUp(mine * element_, kAlignment);
  const int64_t input = scaled_ ? InputElements() : 0;
  const int64_t operands = stride_ * target_.size;
  const int64_t scaled = RoundUp(input * element_, kAlignment);
  const int64_t sum = scaled_ && carried_ != request_.dtype ? mine * element_ : 0;
  if (operands + scaled + sum > 0) {
    void* memory = nullptr;
    COHORT_RETURN_IF_ERROR(target_.cuda->ToStatus(
        target_.cuda->cudaMallocAsync(&memory, static_cast<size_t>(operands + scaled + sum), target_.stream),
        "allocating memory for the operands of a reduction"));
    memory_ = static_cast<std::byte*>(memory);
  }
  source_ = static_cast<const std::byte*>(request_.in);
  if (!scaled_) return absl::OkStatus();
  std::byte* const product = memory_ + operands;
  source_ = product;
  folded_ = sum > 0 ? product + scaled : nullptr;
  return kernels_.Prepare(request_.dtype, {product, request_.in, static_cast<uint64_t>(input), request_.factor},
                          target_.stream);
}

absl::StatusOr<ncclResult_t> NcclExchange::Spread() {
  const Part mine = PartOf(target_.rank);
  Launch launch(target_);
  launch.Begin();
  for (int peer = 0; peer < target_.size; ++peer) {
    if (peer == target_.rank) continue;
    const Part theirs = PartOf(peer);
    Move(launch, source_ + theirs.begin * element_, theirs.count * element_, memory_ + peer * stride_,
         mine.count * element_, peer);
  }
  return launch.End();
}

absl::Status NcclExchange::Fold() {
  const Part mine = PartOf(target_.rank);
  if (mine.count == 0) return absl::OkStatus();
  cuda::FoldArguments arguments;
  arguments.out = folded_ == nullptr ? Result() : folded_;
  arguments.blocks = memory_;
  arguments.own = source_ + mine.begin * element_;
  arguments.stride = static_cast<uint64_t>(stride_);
  arguments.count = static_cast<uint64_t>(mine.count);
  arguments.operands = target_.size;
  arguments.own_index = target_.rank;
  COHORT_RETURN_IF_ERROR(kernels_.Fold(carried_, request_.op, arguments, target_.stream));
  if (folded_ == nullptr) return absl::OkStatus();
  return kernels_.Finish(request_.dtype, {Result(), folded_, static_cast<uint64_t>(mine.count), 1}, target_.stream);
}

absl::StatusOr<ncclResult_t> NcclExchange::Collect() {
  const auto bytes = static_cast<int64_t>(SizeOf(request_.dtype));
  const Part mine = PartOf(target_.rank);
  auto* out = static_cast<std::byte*>(request_.out);
  Launch launch(target_);
  launch.Begin();
  for (int peer = 0; peer < target_.size; ++peer) {
    if (peer == target_.rank) continue;
    const Part theirs = PartOf(peer);
    Move(launch, out + mine.begin * bytes, mine.count * bytes, out + theirs.begin * bytes, theirs.count * bytes, peer);
  }
  return launch.End();
}

absl::Status NcclExchange::End() {
  if (memory_ == nullptr) return absl::OkStatus();
  return target_.cuda->ToStatus(target_.cuda->cudaFreeAsync(TakeMemory(), target_.stream),
                                "freeing the operands of a reduction");
}

}  // namespace cohort::comm::nccl
