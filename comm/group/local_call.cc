#include "cohort/comm/group/local_call.h"

#include <algorithm>
#include <cstring>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/select/selector.h"

namespace cohort::comm {
namespace {

// Moves `count` elements as a group of one does: the input, or the input times its factor.
void Move(const CollectiveRequest& request, void* out, const void* in, int64_t count) {
  const size_t element = SizeOf(request.dtype);
  if (!Reduces(request.kind) || request.op != ReduceOp::kPreMulSum) {
    if (out != in) std::memcpy(out, in, static_cast<size_t>(count) * element);
    return;
  }
  constexpr size_t kBlock = 256;
  alignas(64) std::byte wide[kBlock * 8];
  for (size_t at = 0; at < static_cast<size_t>(count); at += kBlock) {
    const size_t n = std::min(kBlock, static_cast<size_t>(count) - at);
    Prepare(request.dtype, wide, static_cast<const std::byte*>(in) + at * element, n, request.factor);
    Finish(request.dtype, static_cast<std::byte*>(out) + at * element, wide, n, 1);
  }
}

}  // namespace

absl::Status CheckNameAlone(const GroupContext& group, CollectiveKind kind, const CallOptions& options) {
  if (options.algorithm.empty() || FindAlgorithm(kind, options.algorithm) != nullptr) return absl::OkStatus();
  return Select(kind, 0, {}, group.tuning, options.algorithm).status();
}

void RunLocalCall(const CollectiveRequest& request) {
  if (request.blocks != nullptr) {
    const size_t element = SizeOf(request.dtype);
    const BlockTable& blocks = *request.blocks;
    if (blocks.in_counts[0] == 0) return;
    Move(request, static_cast<std::byte*>(request.out) + static_cast<size_t>(blocks.out_places[0]) * element,
         static_cast<const std::byte*>(request.in) + static_cast<size_t>(blocks.in_places[0]) * element,
         blocks.in_counts[0]);
    return;
  }
  if (request.count == 0 || request.in == nullptr || request.out == nullptr) return;
  Move(request, request.out, request.in, request.count);
}

}  // namespace cohort::comm
