// RangeAllocator: best-fit allocation of numbers out of a range, with its books in private memory. The segment uses one
// for pages of the own arena and one for small blocks inside such pages.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cohort::runtime {

// Not thread-safe. Costs O(log n) in the number of free ranges.
class RangeAllocator {
 public:
  // Adds [offset, offset + bytes) to what may be handed out; merges with free neighbours. Also how ranges come back.
  void Add(uint64_t offset, uint64_t bytes);
  // The start of a range of `bytes` that is a multiple of `alignment` (a power of two): from the smallest free range
  // that fits. Nothing when none does.
  std::optional<uint64_t> Take(uint64_t bytes, uint64_t alignment);
  // Bytes of the largest free range.
  uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void Insert(uint64_t offset, uint64_t bytes);
  void Erase(uint64_t offset, uint64_t bytes);

  std::map<uint64_t, uint64_t> by_offset_;           // offset to bytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, offset)
};

}  // namespace cohort::runtime
