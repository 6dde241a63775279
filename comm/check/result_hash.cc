#include "cohort/comm/check/result_hash.h"

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::comm {

uint64_t HashResult(const CollectiveRequest& request, int size) {
  if (request.memory != MemoryKind::kHost || request.user_op != nullptr) return 0;
  const size_t element = SizeOf(request.dtype);
  size_t blocks = 1;
  switch (request.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
      break;
    case CollectiveKind::kAllGather:
      blocks = static_cast<size_t>(size);
      break;
    case CollectiveKind::kAllGatherV: {  // wherever each rank has put its blocks
      const BlockTable& table = *request.blocks;
      uint64_t hash = 1;
      for (size_t i = 0; i < table.out_counts.size(); ++i) {
        const std::byte* const block =
            static_cast<const std::byte*>(request.out) + static_cast<size_t>(table.out_places[i]) * element;
        const auto bytes = static_cast<size_t>(table.out_counts[i]) * element;
        hash = runtime::ChainSignature(hash, bytes == 0 ? 1 : runtime::HashMemory(block, bytes));
      }
      return hash;
    }
    default:
      return 0;
  }
  const size_t bytes = static_cast<size_t>(request.count) * blocks * element;
  return bytes == 0 ? 0 : runtime::HashMemory(request.out, bytes) | 1;
}

}  // namespace cohort::comm
