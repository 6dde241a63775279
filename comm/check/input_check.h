// --check nan: finds NaN and infinity in the input of a call, before they spread.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/reduce/non_finite.h"
#include "cohort/comm/request.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// A run of elements of a call's input buffer.
struct InputBlock {
  size_t place = 0;  // of the first element, from the start of the buffer
  size_t count = 0;
};
// Shows `look` each block of floating-point elements that this rank gives to the call, none where it only receives, up
// to the first for which `look` returns an error. Returns that error.
template <typename Look>
absl::Status LookAtInput(const GroupContext& group, const CollectiveRequest& request, const Look& look) {
  const bool is_root = request.root == group.rank;
  const bool receives = request.kind == CollectiveKind::kBroadcast && !is_root;  // its buffer is written
  const int blocks = BlocksOf(request.kind, is_root, group.size).in;
  if (!IsFloat(request.dtype) || receives || blocks == 0) return absl::OkStatus();
  if (request.blocks == nullptr) {
    return look(InputBlock{.place = 0, .count = static_cast<size_t>(request.count) * static_cast<size_t>(blocks)});
  }
  const BlockTable& table = *request.blocks;
  for (size_t i = 0; i < table.in_counts.size(); ++i) {
    const absl::Status status = look(
        InputBlock{.place = static_cast<size_t>(table.in_places[i]), .count = static_cast<size_t>(table.in_counts[i])});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// kDataLoss where the input that this rank gives to the call, which begins at `in`, is not finite: "rank 3's input of
// all_reduce(sum, float32, 1024) at train.cc:88 holds NaN at element 17 (1 NaN, 0 inf)". Integers are not
// looked at, nor is CUDA memory (comm/nccl/library/device_check.h). `record` describes the call.
absl::Status CheckInput(const GroupContext& group, const CollectiveRequest& request, const void* in,
                        const runtime::CallRecord& record);
// The error of CheckInput, for what was found in a block of the input that begins at `in`.
absl::Status NotFinite(const GroupContext& group, const CollectiveRequest& request, const void* in,
                       const runtime::CallRecord& record, const InputBlock& block, const NonFinite& found);

}  // namespace cohort::comm
