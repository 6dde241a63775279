#include "cohort/launcher/agent/trace/range_reader.h"

#include <atomic>
#include <limits>
#include <optional>

namespace cohort::launcher {

// A range is waited for where fewer than `waits_behind` are behind it. Nothing in the ring is trusted.
uint64_t RangeReader::ReadTo(const runtime::RangeMemory& ranges, size_t most, uint64_t waits_behind,
                             const OnRange& on_range) {
  uint64_t missed = 0;
  const uint64_t latest = ranges.tickets.load(std::memory_order_acquire);
  if (latest > read_ && latest - read_ > runtime::kRangeRecords) {
    missed = latest - read_ - runtime::kRangeRecords;
    read_ = latest - runtime::kRangeRecords;
  }
  for (; read_ < latest && most > 0; --most) {
    const std::optional<runtime::RangeRecord> range = runtime::RangeAt(&ranges, read_ + 1);
    if (range.has_value()) {
      on_range(*range);
    } else if (latest - read_ <= waits_behind) {
      break;
    } else {
      ++missed;
    }
    ++read_;
  }
  return missed;
}

uint64_t RangeReader::Read(const runtime::RangeMemory& ranges, size_t most, const OnRange& on_range) {
  return ReadTo(ranges, most, runtime::kRangeRecords / 2, on_range);
}

uint64_t RangeReader::Finish(const runtime::RangeMemory& ranges, const OnRange& on_range) {
  return ReadTo(ranges, std::numeric_limits<size_t>::max(), 0, on_range);
}

}  // namespace cohort::launcher
