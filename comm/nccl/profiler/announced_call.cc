#include "cohort/comm/nccl/profiler/announced_call.h"

#include <algorithm>
#include <string_view>

#include "cohort/comm/request.h"
#include "cohort/comm/types.h"

namespace cohort::comm::nccl_profiler {
namespace {

struct Function {
  std::string_view name;
  CollectiveKind kind;
};
// AlltoAll, Gather and Scatter are calls of their own in few cases: else NCCL announces sends and receives.
constexpr Function kFunctions[] = {
    {"AllReduce", CollectiveKind::kAllReduce},
    {"AllGather", CollectiveKind::kAllGather},
    {"ReduceScatter", CollectiveKind::kReduceScatter},
    {"Broadcast", CollectiveKind::kBroadcast},
    {"Reduce", CollectiveKind::kReduce},
    {"Send", CollectiveKind::kSend},
    {"Recv", CollectiveKind::kRecv},
    {"AlltoAll", CollectiveKind::kAllToAll},
    {"Gather", CollectiveKind::kGather},
    {"Scatter", CollectiveKind::kScatter},
};

struct Type {
  std::string_view name;
  DataType dtype;
};
constexpr Type kTypes[] = {
    {"ncclInt8", DataType::kInt8},
    {"ncclUint8", DataType::kUint8},
    {"ncclInt32", DataType::kInt32},
    {"ncclUint32", DataType::kUint32},
    {"ncclInt64", DataType::kInt64},
    {"ncclUint64", DataType::kUint64},
    {"ncclFloat16", DataType::kFloat16},
    {"ncclBfloat16", DataType::kBFloat16},
    {"ncclFloat32", DataType::kFloat32},
    {"ncclFloat64", DataType::kFloat64},
    {"ncclFloat8e4m3", DataType::kFloat8E4M3},
    {"ncclFloat8e5m2", DataType::kFloat8E5M2},
};

template <size_t N, typename Entry>
const Entry* Find(const Entry (&entries)[N], const char* name) {
  if (name == nullptr) return nullptr;
  const auto* const found =
      std::find_if(std::begin(entries), std::end(entries), [name](const Entry& entry) { return entry.name == name; });
  return found == std::end(entries) ? nullptr : found;
}

}  // namespace

std::optional<AnnouncedCall> ReadCall(const char* function, const char* datatype, size_t count, int root_or_peer) {
  const Function* const known = Find(kFunctions, function);
  if (known == nullptr) return std::nullopt;
  const Type* const type = Find(kTypes, datatype);
  AnnouncedCall call;
  call.kind = static_cast<uint16_t>(known->kind);
  call.dtype = type == nullptr ? 0 : static_cast<uint16_t>(type->dtype);
  call.count = count;
  if (IsRooted(known->kind)) call.root = std::max(root_or_peer, 0);
  if (IsPointToPoint(known->kind)) call.peer = std::max(root_or_peer, 0);
  return call;
}

runtime::CallRecord ToRecord(const AnnouncedCall& call, int rank, int size) {
  const auto kind = static_cast<CollectiveKind>(call.kind);
  const BufferBlocks blocks = BlocksOf(kind, call.root == rank, std::max(size, 1));
  runtime::CallRecord record;
  record.signature.kind = call.kind;
  record.signature.dtype = call.dtype;
  record.signature.count = call.count;
  record.signature.root = call.root;
  record.bytes = call.count * static_cast<uint64_t>(std::max(blocks.in, blocks.out)) *
                 std::max<size_t>(SizeOf(static_cast<DataType>(call.dtype)), 1);
  record.device = runtime::kUnknownDevice;
  record.group_rank = rank;
  record.group_size = size;
  record.peer = call.peer;
  return record;
}

}  // namespace cohort::comm::nccl_profiler
