// The buffers and values that one operation binds a plan to, and how a run of a plan can fail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/request.h"
#include "cohort/comm/transport/transport.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::comm {

// Returns the beginning of piece `piece` of `count` elements in `pieces` nearly equal pieces: floor(piece * count /
// pieces), even if that product has more than 64 bits. piece <= pieces.
constexpr uint64_t PieceBegin(uint64_t count, uint32_t piece, uint32_t pieces) {
  if (count >> 32 == 0) [[likely]]
    return piece * count / pieces;
  return piece * (count / pieces) + piece * (count % pieces) / pieces;
}

// Elements of an output that is one block.
inline size_t BlockCount(size_t count, const BlockTable* blocks) {
  return blocks == nullptr ? count : static_cast<size_t>(blocks->out_counts.front());
}

// Buffers may be null where the plan does not touch them or the count is 0.
struct PlanBinding {
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;                    // elements per block
  const BlockTable* blocks = nullptr;  // in place of `count`, for plans of unequal blocks
  size_t element_bytes = 1;
  ReduceKernel kernel = nullptr;  // for plans with reductions, or
  const UserReduceOp* user_op = nullptr;
  DataType dtype = DataType::kUint8;  // of the elements that are combined
  // The same for kFold steps; averages are divided too. Null: there is none, and plans with direct access are given up.
  FoldKernel fold = nullptr;
  uint64_t signature = 0;
  const runtime::CallRecord* call = nullptr;  // outlives the operation

  // The beginning of a chunk, in bytes from the start of its buffer.
  size_t OffsetOf(uint32_t chunk, uint32_t pieces) const {
    size_t elements;
    if (pieces == 1) {
      elements = chunk * count;
    } else {
      const uint32_t block = chunk / pieces;
      const uint32_t piece = chunk - block * pieces;
      elements = block * count + PieceBegin(count, piece, pieces);
    }
    return elements * element_bytes;
  }
};

// Why an operation failed: what the transport said, and the peer's call when it was another one.
struct RunnerFailure {
  enum class Cause : uint8_t {
    kStatus,       // all that is known is in `status`
    kOtherCall,    // the peer's message belongs to another call
    kOtherLength,  // unequal blocks: the call is the same, but the message has another length than this rank expects
  };

  absl::Status status;
  int peer = -1;  // group rank, or -1
  Cause cause = Cause::kStatus;
  uint64_t expected_bytes = 0;    // kOtherLength
  uint64_t peer_bytes = 0;        // kOtherLength
  runtime::CallRecord peer_call;  // zero unless it came along
};

}  // namespace cohort::comm
