#include "cohort/runtime/segment/arena.h"

#include <iterator>

namespace cohort::runtime {

void RangeAllocator::Insert(uint64_t offset, uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void RangeAllocator::Erase(uint64_t offset, uint64_t bytes) {
  by_offset_.erase(offset);
  by_size_.erase({bytes, offset});
}

void RangeAllocator::Add(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first == offset + bytes) {
    const auto [next_offset, next_bytes] = *next;
    Erase(next_offset, next_bytes);
    bytes += next_bytes;
    next = by_offset_.lower_bound(offset);
  }
  if (next != by_offset_.begin()) {
    const auto [previous_offset, previous_bytes] = *std::prev(next);
    if (previous_offset + previous_bytes == offset) {
      Erase(previous_offset, previous_bytes);
      offset = previous_offset;
      bytes += previous_bytes;
    }
  }
  Insert(offset, bytes);
}

std::optional<uint64_t> RangeAllocator::Take(uint64_t bytes, uint64_t alignment) {
  for (auto range = by_size_.lower_bound({bytes, 0}); range != by_size_.end(); ++range) {
    const auto [range_bytes, range_offset] = *range;
    const uint64_t start = (range_offset + alignment - 1) & ~(alignment - 1);
    const uint64_t skipped = start - range_offset;
    if (skipped + bytes > range_bytes) continue;
    Erase(range_offset, range_bytes);
    if (skipped > 0) Insert(range_offset, skipped);
    if (skipped + bytes < range_bytes) Insert(start + bytes, range_bytes - skipped - bytes);
    return start;
  }
  return std::nullopt;
}

}  // namespace cohort::runtime
