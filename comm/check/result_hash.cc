#include "cohort/comm/check/result_hash.h"

#include <cstddef>
#include <string>

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::comm {

bool GivesAllTheSame(const CollectiveRequest& request) {
  switch (request.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllGatherV:
      return request.user_op == nullptr;
    default:
      return false;
  }
}

absl::Status CheckComparable(const CollectiveRequest& request, const runtime::Checks& checks, int size) {
  if (!checks.results || request.memory == MemoryKind::kHost || size == 1 || !GivesAllTheSame(request)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      std::string(Name(request.kind)) +
      " on CUDA memory is not covered by --check results, which sends hashes with the "
      "messages of host memory, and NCCL's carry none: run with --check nan, or copy to host "
      "memory first");
}

uint64_t HashResult(const CollectiveRequest& request, int size) {
  if (request.memory != MemoryKind::kHost || !GivesAllTheSame(request)) return 0;
  const size_t element = SizeOf(request.dtype);
  if (request.blocks != nullptr) {  // wherever each rank has put its blocks
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
  const size_t blocks = request.kind == CollectiveKind::kAllGather ? static_cast<size_t>(size) : 1;
  const size_t bytes = static_cast<size_t>(request.count) * blocks * element;
  return bytes == 0 ? 0 : runtime::HashMemory(request.out, bytes) | 1;
}

}  // namespace cohort::comm
