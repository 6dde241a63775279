// A collective call as a value. The Communicator fills it, it is validated once, and one provider serves it.
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// A reduction that the caller computes, in host memory, for ReduceOp::kUser. It must be associative.
struct UserReduceOp {
  // Computes out[i] = a[i] op b[i] for `count` elements. out may be a or b. The thread that drives the operation calls
  // it, one call at a time per group; it must not block. An exception fails the operation with kInternal. It may call
  // Communicator::Abort, even of its own group; the operation then ends when the function has returned.
  void (*function)(void* out, const void* a, const void* b, int64_t count, DataType dtype, void* context) = nullptr;
  void* context = nullptr;
  // All members must pass the same name. It stands for the function when their calls are compared, and in messages.
  std::string_view name = {};
  // True when operands may be exchanged. Otherwise they are combined in the order of ranks, by fewer algorithms.
  bool commutative = true;
};

// Options of one call.
struct CallOptions {
  // An operation that is not complete after this time fails, and with it the group, on all members. A member may get OK
  // all the same: its operation was complete before, or it calls late and finds everything it needs. It gets the
  // failure at its next call. With zero or less the operation fails unless it need not wait.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Forces an algorithm by its name in algorithms.def. All members must force the same one. Empty means the selector's
  // choice. CUDA buffers have one, "staged": through host memory instead of by NCCL.
  std::string algorithm = {};
  // Determinism level of a reduction. Must be equal on all members. kDefault means the group's.
  Determinism determinism = Determinism::kDefault;
  // ReduceOp::kPreMulSum multiplies this rank's input by it; each rank passes its own. For integers it is a value of
  // the type. Products wrap around or round as the type's accumulator does (comm/reduce/reduce.h).
  double factor = 1;
  // Required by ReduceOp::kUser. The object and its function must stay valid until the Work is done.
  const UserReduceOp* user_op = nullptr;
  // For CUDA buffers: the cudaStream_t that the operation is enqueued on. Null is the default stream.
  void* stream = nullptr;
  // Says what the call moves, such as the bucket and the iteration of a gradient. It must be equal on all members, and
  // is part of the signature: calls that agree in all but their tags fail as mismatches. Errors show its upper and
  // lower 32 bits, "tag 7/3". 0 is shown as nothing.
  uint64_t tag = 0;
};

// Says how a buffer of a variable-count call is cut into blocks: counts[r] elements from displacements[r] on are rank
// r's. Read only during the call.
struct BlockLayout {
  std::span<const int64_t> counts = {};
  std::span<const int64_t> displacements = {};  // empty: the blocks lie one after another
};

// The blocks of a variable-count call on this rank, in elements. Places are counted from the start of the buffer. A
// buffer that holds one block has lists of one element.
struct BlockTable {
  std::vector<int64_t> in_counts = {};
  std::vector<int64_t> in_places = {};
  std::vector<int64_t> out_counts = {};
  std::vector<int64_t> out_places = {};
};

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  const void* in = nullptr;
  void* out = nullptr;
  // Elements of the call's block. For all-reduce, broadcast and reduce that is the whole vector, for the other kinds
  // one rank's part. For variable-count forms it is the mean block where all members know the counts, and serves only
  // to choose the algorithm.
  int64_t count = 0;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;  // group rank
  int peer = -1;  // send/recv
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  std::source_location site = {};

  // Blocks of a variable-count form, in place of `count`; null for all other kinds. Valid as long as the call.
  const BlockTable* blocks = nullptr;

  // A hash of the calls that this one was gathered from (comm/batch.h). 0: it is one call.
  uint64_t parts = 0;
  uint64_t tag = 0;  // CallOptions::tag

  // Set for kinds that reduce (ApplyOptions).
  Determinism determinism = Determinism::kFast;
  double factor = 1;
  const UserReduceOp* user_op = nullptr;

  // True when input and output are the same memory in the way that NCCL defines for the kind.
  bool in_place = false;
};

// Bytes of the call's block.
inline int64_t BytesOf(const CollectiveRequest& request) {
  return request.count * static_cast<int64_t>(SizeOf(request.dtype));
}

// True for the kinds that combine elements, and so have an op.
constexpr bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kReduceScatterV;
}
constexpr bool IsRooted(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter || kind == CollectiveKind::kGatherV || kind == CollectiveKind::kScatterV;
}
constexpr bool IsPointToPoint(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}

// Numbers of blocks of `count` elements in the input and output of this rank. 0 where the kind has none here.
struct BufferBlocks {
  int in = 0;
  int out = 0;
};
BufferBlocks BlocksOf(CollectiveKind kind, bool is_root, int size);

// The arguments of a call, as the caller passed them. For broadcast, `in` and `out` are the one buffer.
struct CallArguments {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ConstBuffer in = {};
  Buffer out = {};
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  int peer = -1;
  std::source_location site = {};
};

// One call of a batch (comm/batch.h), as the caller passed it. It owns the layouts of a variable-count form.
struct BatchedCall {
  CallArguments arguments = {};
  CallOptions options = {};
  std::vector<int64_t> in_counts = {};
  std::vector<int64_t> in_displacements = {};
  std::vector<int64_t> out_counts = {};
  std::vector<int64_t> out_displacements = {};

  BlockLayout in_blocks() const { return {in_counts, in_displacements}; }
  BlockLayout out_blocks() const { return {out_counts, out_displacements}; }
};

// Checks the arguments of a call by rank `rank` of `size` and fills `request`, which must be new, from them. Local.
// kInvalidArgument names the argument, the value and the right one. Buffers that the call does not use on this rank are
// ignored.
absl::Status MakeRequest(const CallArguments& arguments, int rank, int size, CollectiveRequest* request);

// Sets the tag, and completes the request of a kind that reduces. kInvalidArgument: the op doesn't go with the type,
// the memory or the options. `default_level` is not kDefault.
absl::Status ApplyOptions(const CallOptions& options, Determinism default_level, CollectiveRequest* request);

// MakeRequest for the variable-count forms. It ignores a layout that the call does not use on this rank. It fills
// `table`, which `request` then refers to.
absl::Status MakeUnequalRequest(const CallArguments& arguments, const BlockLayout& in_blocks,
                                const BlockLayout& out_blocks, int rank, int size, BlockTable* table,
                                CollectiveRequest* request);

}  // namespace cohort::comm
