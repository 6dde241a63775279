#include "cohort/comm/check/result_hash.h"

#include <cstring>

namespace cohort::comm {
namespace {

using runtime::SignatureWords;

constexpr size_t kLanes = 4;
constexpr size_t kStep = 16 * kLanes;

uint64_t WordAt(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Both words, with keys of their own, into the lane.
uint64_t Mix(uint64_t lane, const std::byte* data, size_t key) {
  return SignatureWords::Fold(WordAt(data) ^ lane, WordAt(data + 8) ^ SignatureWords::kKeys[key]) + lane;
}

}  // namespace

uint64_t HashMemory(const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  const size_t total = bytes;
  // Lanes of their own: a multiplication does not wait for the one before it.
  uint64_t lanes[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = SignatureWords::kKeys[lane] + lane;
  for (; bytes >= kStep; at += kStep, bytes -= kStep) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Mix(lanes[lane], at + 16 * lane, lane + 1);
  }
  if (bytes > 0) {
    std::byte rest[kStep] = {};
    std::memcpy(rest, at, bytes);
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Mix(lanes[lane], rest + 16 * lane, lane + 1);
  }
  uint64_t hash = total ^ SignatureWords::kKeys[5];
  for (const uint64_t lane : lanes)
    hash = SignatureWords::Fold(hash ^ SignatureWords::kKeys[0], lane ^ SignatureWords::kKeys[4]) + lane;
  return hash;
}

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
        hash = runtime::ChainSignature(hash, bytes == 0 ? 1 : HashMemory(block, bytes));
      }
      return hash;
    }
    default:
      return 0;
  }
  const size_t bytes = static_cast<size_t>(request.count) * blocks * element;
  return bytes == 0 ? 0 : HashMemory(request.out, bytes) | 1;
}

}  // namespace cohort::comm
