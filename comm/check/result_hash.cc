#include "cohort/comm/check/result_hash.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "cohort/runtime/tape/memory_hash.h"

namespace cohort::comm {
namespace {

// Adds numbers of as many bits, all NaNs as one. NaNs have magnitudes above `most`, that of infinity.
template <typename Bits>
void AddNumbers(const void* numbers, size_t count, Bits most, runtime::MemoryHash* hash) {
  constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  std::array<Bits, 4096 / sizeof(Bits)> part;
  for (size_t at = 0; at < count; at += part.size()) {
    const size_t length = std::min(part.size(), count - at);
    std::memcpy(part.data(), static_cast<const std::byte*>(numbers) + at * sizeof(Bits), length * sizeof(Bits));
    for (size_t i = 0; i < length; ++i) {
      part[i] = static_cast<Bits>(part[i] & kMagnitude) > most ? kMagnitude : part[i];
    }
    hash->Add(part.data(), length * sizeof(Bits));
  }
}

// The hash of what a reduction gave. Of two NaNs each CPU keeps the one that its instruction has first, so that ranks
// may have NaNs of different signs and payloads at one place.
uint64_t HashReduced(const void* numbers, size_t count, DataType dtype) {
  runtime::MemoryHash hash;
  switch (dtype) {
    case DataType::kFloat8E4M3:
      AddNumbers<uint8_t>(numbers, count, 0x7e, &hash);
      break;
    case DataType::kFloat8E5M2:
      AddNumbers<uint8_t>(numbers, count, 0x7c, &hash);
      break;
    case DataType::kFloat16:
      AddNumbers<uint16_t>(numbers, count, 0x7c00, &hash);
      break;
    case DataType::kBFloat16:
      AddNumbers<uint16_t>(numbers, count, 0x7f80, &hash);
      break;
    case DataType::kFloat32:
      AddNumbers<uint32_t>(numbers, count, 0x7f80'0000, &hash);
      break;
    case DataType::kFloat64:
      AddNumbers<uint64_t>(numbers, count, 0x7ff0'0000'0000'0000, &hash);
      break;
    default:
      hash.Add(numbers, count * SizeOf(dtype));
  }
  return hash.Finish();
}

}  // namespace

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
  if (bytes == 0) return 0;
  const bool reduced = request.kind == CollectiveKind::kAllReduce;
  const auto count = static_cast<size_t>(request.count);
  return (reduced ? HashReduced(request.out, count, request.dtype) : runtime::HashMemory(request.out, bytes)) | 1;
}

}  // namespace cohort::comm
