// A collective call as a value: filled by the Communicator, validated once, handed to exactly one provider.
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

// A reduction that the caller computes, in host memory: for ReduceOp::kUser. It must be associative.
struct UserReduceOp {
  // out[i] = a[i] op b[i] for `count` elements; out may be a or b. Called on whichever thread drives the operation, one
  // call at a time per group; it must not block. What it throws fails the operation with kInternal. It may call
  // Communicator::Abort, of its own group too: the operation then ends when the function has returned.
  void (*function)(void* out, const void* a, const void* b, int64_t count, DataType dtype, void* context) = nullptr;
  void* context = nullptr;
  // All members must pass the same name: it stands for the function in the check of their calls, and in messages.
  std::string_view name = {};
  // Operands may be exchanged. Otherwise they are combined in the order of ranks, by fewer algorithms.
  bool commutative = true;
};

// Per-call options.
struct CallOptions {
  // After this long without completion the operation fails, and with it the group, on all members. A member for which
  // it was complete before that, or that calls late and finds everything it needs there, has OK from it and hears of
  // the failure at what it does next. Zero or less: it fails unless it need not wait.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // Forces an algorithm by its name in algorithms.def; all members must force the same one. Empty: the selector's.
  // CUDA buffers know one, "staged": through host memory instead of by NCCL.
  std::string algorithm = {};
  // Of reductions; all members must pass the same one. kDefault: the group's.
  Determinism determinism = Determinism::kDefault;
  // ReduceOp::kPreMulSum: what this rank's input is multiplied by; each rank passes its own. For integers a value of
  // the type. Products wrap around or round as the type's accumulator does (comm/reduce/reduce.h).
  double factor = 1;
  // ReduceOp::kUser. The object and its function must stay valid until the Work is done.
  const UserReduceOp* user_op = nullptr;
  // CUDA buffers: the cudaStream_t that the operation is enqueued on; null is the default stream.
  void* stream = nullptr;
};

// How a buffer of a variable-count call is cut into blocks: counts[r] elements from displacements[r] on are rank r's.
// Only read during the call.
struct BlockLayout {
  std::span<const int64_t> counts = {};
  std::span<const int64_t> displacements = {};  // empty: one block after another
};

// The blocks of a variable-count call on this rank, in elements; places are counted from the start of the buffer. A
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
  // The block of the call, in elements: all-reduce, broadcast, reduce: the whole vector; gather, scatter, all-gather,
  // reduce-scatter, all-to-all: one rank's part. Variable-count forms: what the choice of an algorithm goes by, the
  // mean block where all members know the counts.
  int64_t count = 0;
  DataType dtype = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;  // group rank
  int peer = -1;  // send/recv
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  std::source_location site = {};

  // Variable-count forms: their blocks, in place of `count`; null for all other kinds. Valid as long as the call.
  const BlockTable* blocks = nullptr;

  // A hash of the calls that this one was gathered from (comm/batch.h); 0: it is one call.
  uint64_t parts = 0;

  // Of kinds that reduce (ApplyOptions).
  Determinism determinism = Determinism::kFast;
  double factor = 1;
  const UserReduceOp* user_op = nullptr;

  // True where input and output are the same memory in the way that NCCL defines for the kind.
  bool in_place = false;
};

// The bytes of the call's block.
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

// Blocks of `count` elements in the input and output of this rank; 0 where the kind has none here.
struct BufferBlocks {
  int in = 0;
  int out = 0;
};
BufferBlocks BlocksOf(CollectiveKind kind, bool is_root, int size);

// What a caller passed, as it was passed. Broadcast: `in` and `out` are the one buffer.
struct CallArguments {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ConstBuffer in = {};
  Buffer out = {};
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  int peer = -1;
  std::source_location site = {};
};

// One call of a batch (comm/batch.h), as it was passed; the layouts of a variable-count form are kept.
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

// Checks the arguments of a call by rank `rank` of `size` and makes `request`, which must be new, of them. Local:
// kInvalidArgument with the argument's name, what was passed and what would be right. Buffers that the call does not
// use on this rank are ignored.
absl::Status MakeRequest(const CallArguments& arguments, int rank, int size, CollectiveRequest* request);

// Completes the request of a kind that reduces. kInvalidArgument where the op doesn't go with the type, the memory or
// the options; a default level must be one of the real ones.
absl::Status ApplyOptions(const CallOptions& options, Determinism default_level, CollectiveRequest* request);

// MakeRequest for the variable-count forms. A layout that the call does not use on this rank is ignored. Fills `table`,
// which `request` then refers to.
absl::Status MakeUnequalRequest(const CallArguments& arguments, const BlockLayout& in_blocks,
                                const BlockLayout& out_blocks, int rank, int size, BlockTable* table,
                                CollectiveRequest* request);

}  // namespace cohort::comm
