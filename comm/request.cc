#include "cohort/comm/request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

std::string Text(std::string_view text) { return std::string(text); }

// " at main.cc:90"; empty where nobody said where the call stands.
std::string At(const std::source_location& site) {
  const std::string_view file = site.file_name();
  if (file.empty()) return "";
  return " at " + Text(file.substr(file.find_last_of('/') + 1)) + ":" + std::to_string(site.line());
}

absl::Status Invalid(const CallArguments& arguments, const std::string& text) {
  return absl::InvalidArgumentError(Text(Name(arguments.kind)) + At(arguments.site) + ": " + text);
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

// A process can address 56 bits, with five levels of page tables. Numbers below can be added up and multiplied by the
// sizes of types without overflowing 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 56;

bool TooManyBytes(int64_t count, DataType dtype) {
  int64_t bytes;
  return __builtin_mul_overflow(count, static_cast<int64_t>(SizeOf(dtype)), &bytes) || bytes > kMostBytes;
}

absl::Status CheckView(const CallArguments& arguments, const View& view) {
  const bool host_or_cuda = view.memory == MemoryKind::kHost || view.memory == MemoryKind::kCuda;
  const bool device = view.device >= 0 || view.memory == MemoryKind::kHost;
  if (SizeOf(view.dtype) != 0 && host_or_cuda && device && view.count >= 0 && !TooManyBytes(view.count, view.dtype) &&
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
  if (!device) {
    return Invalid(arguments,
                   name + " lies on device " + std::to_string(view.device) + "; CUDA numbers devices from 0 on");
  }
  if (view.count < 0) {
    return Invalid(arguments, name + " has " + std::to_string(view.count) + " elements; a count is at least 0");
  }
  if (TooManyBytes(view.count, view.dtype)) {
    return Invalid(arguments, name + " has " + std::to_string(view.count) + " elements of " + Text(Name(view.dtype)) +
                                  ": more than 2^56 bytes, which no process can address; give the count in elements");
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
    return Invalid(arguments,
                   "in and out lie in different memory; both must be host memory or on one device: copy one "
                   "of them (cudaMemcpyAsync on the call's stream)");
  }
  // One of them has one block, or both have equally many.
  const int64_t block = in.blocks <= out.blocks ? BlockCount(in) : BlockCount(out);
  int64_t all;
  if (__builtin_mul_overflow(block, static_cast<int64_t>(std::max(in.blocks, out.blocks)), &all) ||
      TooManyBytes(all, in.dtype)) {
    return Invalid(arguments,
                   "in and out together would have more than 2^56 bytes, which no process can address; give the "
                   "count in elements");
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
    const MemoryKind memory = arguments.kind == CollectiveKind::kSend ? arguments.in.memory : arguments.out.memory;
    if (arguments.peer == rank && memory != MemoryKind::kHost) {
      return Invalid(arguments, "peer is the caller, rank " + std::to_string(rank) +
                                    ", itself, which NCCL does not serve alone; copy the memory instead");
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
  switch (EqualBlocksForm(kind)) {
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
    default:
      return {0, 0};
  }
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

namespace {

// The size by which an algorithm is chosen if not all members know the counts. All must choose alike, and they share
// the kind and the group alone, and to agree on more would cost a round before every call. So a size in between stands
// for all, which errs for large blocks: for it flat is chosen in small groups, and flat took up to 2.8 times as long
// as the best algorithm of the equal form (all_to_all, 2 ranks, 4 MiB). `CallOptions::algorithm` chooses another one.
constexpr int64_t kNominalBlockBytes = 16 * 1024;

std::string BlockText(int64_t count, int64_t place) {
  return std::to_string(count) + " elements from " + std::to_string(place) + " on";
}

// Fills counts and places of one buffer from the caller's layout.
absl::Status ReadLayout(const CallArguments& arguments, const View& view, const BlockLayout& layout, size_t size,
                        std::vector<int64_t>* counts, std::vector<int64_t>* places) {
  const std::string name = std::string(view.name) + "_blocks";
  const auto wrong_size = [&](const char* list, size_t found) {
    return Invalid(arguments, name + "." + list + " has " + std::to_string(found) + " values; the group has " +
                                  std::to_string(size) + " ranks");
  };
  if (layout.counts.size() != size) return wrong_size("counts", layout.counts.size());
  const bool dense = layout.displacements.empty();
  if (!dense && layout.displacements.size() != size) return wrong_size("displacements", layout.displacements.size());
  counts->assign(layout.counts.begin(), layout.counts.end());
  places->assign(layout.displacements.begin(), layout.displacements.end());
  places->resize(size);
  int64_t end = 0;
  for (size_t i = 0; i < size; ++i) {
    const std::string index = "[" + std::to_string(i) + "] is ";
    const int64_t count = (*counts)[i];
    if (count < 0) {
      return Invalid(arguments, name + ".counts" + index + std::to_string(count) + "; a count is at least 0");
    }
    if (dense) (*places)[i] = end;
    const int64_t place = (*places)[i];
    if (place < 0) {
      return Invalid(arguments,
                     name + ".displacements" + index + std::to_string(place) + "; a displacement is at least 0");
    }
    if (__builtin_add_overflow(place, count, &end) || (count > 0 && end > view.count)) {
      return Invalid(arguments, "block " + std::to_string(i) + " of " + view.name + ", " + BlockText(count, place) +
                                    ", reaches beyond " + view.name + ", which has " + std::to_string(view.count) +
                                    " elements");
    }
  }
  return absl::OkStatus();
}

// Blocks that are written may not overlap: what would lie there is anybody's guess.
absl::Status CheckDisjoint(const CallArguments& arguments, const View& view, const std::vector<int64_t>& counts,
                           const std::vector<int64_t>& places) {
  std::vector<size_t> order;
  int64_t end = 0;
  bool ascending = true;
  for (size_t i = 0; i < counts.size() && ascending; ++i) {
    if (counts[i] == 0) continue;
    ascending = places[i] >= end;
    end = places[i] + counts[i];
  }
  if (ascending) return absl::OkStatus();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return places[a] < places[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t a = order[i - 1];
    const size_t b = order[i];
    if (places[a] + counts[a] <= places[b]) continue;
    return Invalid(arguments, std::string(view.name) + "_blocks: block " + std::to_string(a) + " (" +
                                  BlockText(counts[a], places[a]) + ") and block " + std::to_string(b) + " (" +
                                  BlockText(counts[b], places[b]) + ") overlap; blocks that are written must be apart");
  }
  return absl::OkStatus();
}

// The memory from the first to past the last element of the blocks; empty where they have none.
std::pair<uintptr_t, uintptr_t> ExtentOf(const View& view, const std::vector<int64_t>& counts,
                                         const std::vector<int64_t>& places) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    begin = std::min(begin, places[i]);
    end = std::max(end, places[i] + counts[i]);
  }
  if (end == 0) return {0, 0};
  const auto base = reinterpret_cast<uintptr_t>(view.data);
  const size_t element = SizeOf(view.dtype);
  return {base + static_cast<uintptr_t>(begin) * element, base + static_cast<uintptr_t>(end) * element};
}

// Both buffers are used: the caller's own block must be equally long in both, and they must be apart or in place.
absl::Status CheckBoth(const CallArguments& arguments, const View& in, const View& out, int rank,
                       const BlockTable& table, bool* in_place) {
  if (in.dtype != out.dtype || in.memory != out.memory || in.device != out.device) {
    return Invalid(arguments, "in and out must be of one type, " + Text(Name(in.dtype)) + " or " +
                                  Text(Name(out.dtype)) + ", and lie in the same memory");
  }
  const auto own = static_cast<size_t>(rank);
  const size_t in_block = table.in_counts.size() == 1 ? 0 : own;
  const size_t out_block = table.out_counts.size() == 1 ? 0 : own;
  if (table.in_counts[in_block] != table.out_counts[out_block]) {
    return Invalid(arguments, "the block of the caller, rank " + std::to_string(rank) + ", has " +
                                  std::to_string(table.in_counts[in_block]) + " elements in in and " +
                                  std::to_string(table.out_counts[out_block]) + " in out; it must have equally many");
  }
  const auto [in_begin, in_end] = ExtentOf(in, table.in_counts, table.in_places);
  const auto [out_begin, out_end] = ExtentOf(out, table.out_counts, table.out_places);
  *in_place = false;
  if (in_begin == in_end || out_begin == out_end || in_end <= out_begin || out_end <= in_begin) {
    return absl::OkStatus();
  }
  const auto place = [own_bytes = SizeOf(in.dtype)](const View& view, int64_t elements) {
    return reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(elements) * own_bytes;
  };
  if (arguments.kind == CollectiveKind::kAllToAllV) {
    *in_place = in.data == out.data && table.in_counts == table.out_counts && table.in_places == table.out_places;
  } else {
    *in_place = place(in, table.in_places[in_block]) == place(out, table.out_places[out_block]);
  }
  if (*in_place) return absl::OkStatus();
  return Invalid(arguments,
                 std::string("in and out overlap; they must be apart, or in place (") +
                     (arguments.kind == CollectiveKind::kAllToAllV ? "in == out with equal layouts"
                                                                   : "the caller's block at the same address in both") +
                     ")");
}

// Rounded down. The sum of blocks that overlap may have more than 64 bits.
int64_t MeanOf(const std::vector<int64_t>& counts) {
  const auto size = static_cast<int64_t>(counts.size());
  int64_t mean = 0;
  int64_t rest = 0;
  for (const int64_t count : counts) {
    mean += count / size;
    rest += count % size;
  }
  return mean + rest / size;
}

struct Side {
  View view;
  bool used;
  const BlockLayout* layout;  // null: the buffer is one block
  bool written;
};

absl::Status ReadSide(const CallArguments& arguments, const Side& side, int size, std::vector<int64_t>* counts,
                      std::vector<int64_t>* places) {
  counts->clear();
  places->clear();
  if (!side.used) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(CheckView(arguments, side.view));
  if (side.layout == nullptr) {
    counts->assign(1, side.view.count);
    places->assign(1, 0);
    return absl::OkStatus();
  }
  COHORT_RETURN_IF_ERROR(ReadLayout(arguments, side.view, *side.layout, static_cast<size_t>(size), counts, places));
  return side.written ? CheckDisjoint(arguments, side.view, *counts, *places) : absl::OkStatus();
}

}  // namespace

absl::Status MakeUnequalRequest(const CallArguments& arguments, const BlockLayout& in_blocks,
                                const BlockLayout& out_blocks, int rank, int size, BlockTable* table,
                                CollectiveRequest* request) {
  COHORT_RETURN_IF_ERROR(CheckRanks(arguments, rank, size));
  const CollectiveKind kind = arguments.kind;
  const BufferBlocks blocks = BlocksOf(kind, rank == arguments.root, size);
  const bool cuts_in = kind == CollectiveKind::kScatterV || kind == CollectiveKind::kReduceScatterV ||
                       kind == CollectiveKind::kAllToAllV;
  const bool cuts_out =
      kind == CollectiveKind::kGatherV || kind == CollectiveKind::kAllGatherV || kind == CollectiveKind::kAllToAllV;
  const ConstBuffer& a = arguments.in;
  const Buffer& b = arguments.out;
  const Side in{
      {"in", a.data, a.count, a.dtype, a.memory, a.device, 1}, blocks.in > 0, cuts_in ? &in_blocks : nullptr, false};
  const Side out{
      {"out", b.data, b.count, b.dtype, b.memory, b.device, 1}, blocks.out > 0, cuts_out ? &out_blocks : nullptr, true};
  COHORT_RETURN_IF_ERROR(ReadSide(arguments, in, size, &table->in_counts, &table->in_places));
  COHORT_RETURN_IF_ERROR(ReadSide(arguments, out, size, &table->out_counts, &table->out_places));
  request->kind = kind;
  request->op = arguments.op;
  request->root = IsRooted(kind) ? arguments.root : -1;
  request->site = arguments.site;
  request->blocks = table;
  if (in.used) request->in = a.data;
  if (out.used) request->out = b.data;
  if (in.used && out.used) {
    COHORT_RETURN_IF_ERROR(CheckBoth(arguments, in.view, out.view, rank, *table, &request->in_place));
  }
  const View& used = in.used ? in.view : out.view;
  request->dtype = used.dtype;
  request->memory = used.memory;
  request->device = used.device;
  request->count = kNominalBlockBytes / static_cast<int64_t>(SizeOf(used.dtype));
  if (kind == CollectiveKind::kAllGatherV || kind == CollectiveKind::kReduceScatterV) {
    const std::vector<int64_t>& counts = cuts_in ? table->in_counts : table->out_counts;
    request->count = MeanOf(counts);
  }
  return absl::OkStatus();
}

absl::Status ApplyOptions(const CallOptions& options, Determinism default_level, CollectiveRequest* request) {
  request->tag = options.tag;
  if (!Reduces(request->kind)) return absl::OkStatus();
  const auto invalid = [request](const std::string& text) {
    return absl::InvalidArgumentError(Text(Name(request->kind)) + At(request->site) + ": " + text);
  };
  const auto level = static_cast<int>(options.determinism);
  if (level < 0 || level >= kDeterminismLevels) {
    return invalid("determinism is " + std::to_string(level) + ", which is no Determinism");
  }
  request->determinism = options.determinism == Determinism::kDefault ? default_level : options.determinism;
  if (request->op <= ReduceOp::kAvg) [[likely]]
    return absl::OkStatus();
  if (IsBitwise(request->op) && IsFloat(request->dtype)) {
    return invalid(Text(Name(request->op)) + " is defined for integers, not for " + Text(Name(request->dtype)) +
                   ": pass the memory as integers of the same size");
  }
  if (request->op == ReduceOp::kPreMulSum) {
    if (!FactorFits(request->dtype, options.factor)) {
      return invalid("CallOptions::factor is " + std::to_string(options.factor) + ", which is no " +
                     Text(Name(request->dtype)));
    }
    request->factor = options.factor;
  }
  if (request->op == ReduceOp::kUser) {
    if (options.user_op == nullptr || options.user_op->function == nullptr || options.user_op->name.empty()) {
      return invalid("op is user, and CallOptions::user_op names no function: set its function and its name");
    }
    if (request->memory != MemoryKind::kHost) {
      return invalid("op is user, whose function reads host memory, and the buffers are CUDA memory: copy them first");
    }
    request->user_op = options.user_op;
  }
  return absl::OkStatus();
}

}  // namespace cohort::comm
