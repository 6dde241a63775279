#include "comm/request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

std::string Text(std::string_view text) { return std::string(text); }

absl::Status Invalid(const CallArguments& arguments, const std::string& text) {
  return absl::InvalidArgumentError(Text(Name(arguments.kind)) + ": " + text);
}

// One buffer that the call uses on this rank, whichever it is.
struct View {
  const char* name;
  const void* data;
  int64_t count;
  DataType dtype;
  MemoryKind memory;
  int device;
  int blocks;  // the buffer holds this many blocks of the call
};

// The calls below are on every operation's path: they make texts and divide only where they must.
int64_t BlockCount(const View& view) { return view.blocks == 1 ? view.count : view.count / view.blocks; }

bool TooManyBytes(int64_t count, DataType dtype) {
  int64_t bytes;
  return __builtin_mul_overflow(count, static_cast<int64_t>(SizeOf(dtype)), &bytes);
}

absl::Status CheckView(const CallArguments& arguments, const View& view) {
  const bool host_or_cuda = view.memory == MemoryKind::kHost || view.memory == MemoryKind::kCuda;
  if (SizeOf(view.dtype) != 0 && host_or_cuda && view.count >= 0 && !TooManyBytes(view.count, view.dtype) &&
      (view.count == 0 || view.data != nullptr)) [[likely]] {
    return absl::OkStatus();
  }
  const std::string name = view.name;
  if (SizeOf(view.dtype) == 0) {
    return Invalid(arguments,
                   name + " has dtype " + std::to_string(static_cast<int>(view.dtype)) + ", which is no DataType");
  }
  if (!host_or_cuda) {
    return Invalid(arguments, name + " has memory kind " + std::to_string(static_cast<int>(view.memory)) +
                                  ", which is neither host nor CUDA memory");
  }
  if (view.count < 0) {
    return Invalid(arguments, name + " has " + std::to_string(view.count) + " elements; a count is at least 0");
  }
  if (TooManyBytes(view.count, view.dtype)) {
    return Invalid(arguments, name + " has " + std::to_string(view.count) + " elements of " + Text(Name(view.dtype)) +
                                  ": more than 2^63 bytes");
  }
  return Invalid(arguments, name + " is null but has " + std::to_string(view.count) + " elements");
}

// Both buffers are used: they must agree in all but the number of blocks.
absl::Status CheckPair(const CallArguments& arguments, const View& in, const View& out) {
  if (in.dtype != out.dtype) {
    return Invalid(arguments, "in holds " + Text(Name(in.dtype)) + " and out holds " + Text(Name(out.dtype)) +
                                  "; they must be of one type");
  }
  if (in.memory != out.memory || in.device != out.device) {
    return Invalid(arguments, "in and out lie in different memory; both must be host memory or on one device");
  }
  // One of them has one block, or both have equally many.
  const int64_t block = in.blocks <= out.blocks ? BlockCount(in) : BlockCount(out);
  int64_t all;
  if (__builtin_mul_overflow(block, static_cast<int64_t>(in.blocks) * out.blocks, &all) ||
      TooManyBytes(all, in.dtype)) {
    return Invalid(arguments, "in and out together have more than 2^63 bytes");
  }
  const auto expected = [](const View& view) {
    return view.blocks == 1 ? std::string("count") : std::to_string(view.blocks) + " * count";
  };
  if (in.blocks == 1 && out.blocks == 1 && in.count != out.count) {
    return Invalid(arguments, "in has " + std::to_string(in.count) + " elements and out has " +
                                  std::to_string(out.count) + "; they must have equally many");
  }
  if (in.count != block * in.blocks || out.count != block * out.blocks) {
    return Invalid(arguments, "in has " + std::to_string(in.count) + " elements and out has " +
                                  std::to_string(out.count) + "; with " +
                                  std::to_string(std::max(in.blocks, out.blocks)) + " ranks in must have " +
                                  expected(in) + " and out " + expected(out));
  }
  return absl::OkStatus();
}

// In place in the way of the kind, apart, or (refused) anything between.
absl::Status CheckOverlap(const CallArguments& arguments, const View& in, const View& out, int rank, bool* in_place) {
  *in_place = false;
  const size_t element = SizeOf(in.dtype);
  const auto in_begin = reinterpret_cast<uintptr_t>(in.data);
  const auto out_begin = reinterpret_cast<uintptr_t>(out.data);
  const uintptr_t in_end = in_begin + static_cast<uintptr_t>(in.count) * element;
  const uintptr_t out_end = out_begin + static_cast<uintptr_t>(out.count) * element;
  if (in.count == 0 || out.count == 0 || in_end <= out_begin || out_end <= in_begin) return absl::OkStatus();
  const uintptr_t block = static_cast<uintptr_t>(BlockCount(in)) * element;
  const uintptr_t own = in.blocks == out.blocks ? 0 : block * static_cast<uintptr_t>(rank);
  *in_place = in.blocks <= out.blocks ? in_begin == out_begin + own : out_begin == in_begin + own;
  if (*in_place) return absl::OkStatus();
  std::string where = "in == out";
  if (in.blocks < out.blocks) where = "in == out + rank * count";
  if (in.blocks > out.blocks) where = "out == in + rank * count";
  return Invalid(arguments, "in and out overlap; they must be apart, or in place (" + where + ")");
}

absl::Status CheckRanks(const CallArguments& arguments, int rank, int size) {
  const auto in_range = [size](int value) { return value >= 0 && value < size; };
  const auto range = [size] { return "; the group's ranks are 0 to " + std::to_string(size - 1); };
  if (IsRooted(arguments.kind) && !in_range(arguments.root)) {
    return Invalid(arguments, "root is " + std::to_string(arguments.root) + range());
  }
  if (IsPointToPoint(arguments.kind)) {
    if (!in_range(arguments.peer)) return Invalid(arguments, "peer is " + std::to_string(arguments.peer) + range());
    if (arguments.peer == rank) {
      return Invalid(arguments,
                     "peer is the caller, rank " + std::to_string(rank) + ", itself; copy the memory instead");
    }
  }
  const int op = static_cast<int>(arguments.op);
  if (Reduces(arguments.kind) && (op < 1 || op >= kReduceOps)) {
    return Invalid(arguments, "op is " + std::to_string(op) + ", which is no ReduceOp");
  }
  return absl::OkStatus();
}

}  // namespace

BufferBlocks BlocksOf(CollectiveKind kind, bool is_root, int size) {
  switch (kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllReduce:
      return {1, 1};
    case CollectiveKind::kReduce:
      return {1, is_root ? 1 : 0};
    case CollectiveKind::kGather:
      return {1, is_root ? size : 0};
    case CollectiveKind::kScatter:
      return {is_root ? size : 0, 1};
    case CollectiveKind::kAllGather:
      return {1, size};
    case CollectiveKind::kReduceScatter:
      return {size, 1};
    case CollectiveKind::kAllToAll:
      return {size, size};
    case CollectiveKind::kBarrier:
      return {0, 0};
    case CollectiveKind::kSend:
      return {1, 0};
    case CollectiveKind::kRecv:
      return {0, 1};
  }
  return {0, 0};
}

absl::Status MakeRequest(const CallArguments& arguments, int rank, int size, CollectiveRequest* request) {
  COHORT_RETURN_IF_ERROR(CheckRanks(arguments, rank, size));
  const BufferBlocks blocks = BlocksOf(arguments.kind, rank == arguments.root, size);
  const ConstBuffer& a = arguments.in;
  const Buffer& b = arguments.out;
  const View in{"in", a.data, a.count, a.dtype, a.memory, a.device, blocks.in};
  const View out{"out", b.data, b.count, b.dtype, b.memory, b.device, blocks.out};
  request->kind = arguments.kind;
  request->op = arguments.op;
  request->root = IsRooted(arguments.kind) ? arguments.root : -1;
  request->peer = arguments.peer;
  request->site = arguments.site;
  if (blocks.in > 0) {
    COHORT_RETURN_IF_ERROR(CheckView(arguments, in));
    request->in = a.data;
  }
  if (blocks.out > 0) {
    COHORT_RETURN_IF_ERROR(CheckView(arguments, out));
    request->out = b.data;
  }
  if (blocks.in > 0 && blocks.out > 0) {
    COHORT_RETURN_IF_ERROR(CheckPair(arguments, in, out));
    COHORT_RETURN_IF_ERROR(CheckOverlap(arguments, in, out, rank, &request->in_place));
  }
  if (blocks.in > 0 || blocks.out > 0) {
    const View& used = blocks.in > 0 && (blocks.out == 0 || blocks.in <= blocks.out) ? in : out;
    request->dtype = used.dtype;
    request->memory = used.memory;
    request->device = used.device;
    request->count = BlockCount(used);
  }
  return absl::OkStatus();
}

}  // namespace cohort::comm
