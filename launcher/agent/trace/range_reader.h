// Follows a rank's ring of ranges: each range once. The rank writes on meanwhile, and what it overwrites before it was
// read is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cohort/runtime/ranges/range_ring.h"

namespace cohort::launcher {

class RangeReader {
 public:
  using OnRange = std::function<void(const runtime::RangeRecord& range)>;

  // Reads the ranges after the one with ticket `after`.
  explicit RangeReader(uint64_t after) : read_(after) {}

  // Takes `most` ranges. Returns the number of ranges that were missed since. One that is not written yet is waited for
  // while the ranges behind it fill less than half of the ring.
  uint64_t Read(const runtime::RangeMemory& ranges, size_t most, const OnRange& on_range);
  // Takes the rest: the rank writes no more, and what is not written yet is missed.
  uint64_t Finish(const runtime::RangeMemory& ranges, const OnRange& on_range);

 private:
  uint64_t ReadTo(const runtime::RangeMemory& ranges, size_t most, uint64_t waits_behind, const OnRange& on_range);

  uint64_t read_;  // the ticket of the last range that was taken or missed
};

}  // namespace cohort::launcher
