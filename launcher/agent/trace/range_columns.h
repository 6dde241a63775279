// The ranges of a rank as a message to dlaunch has them: a column for each property.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "cohort/runtime/ranges/range_ring.h"
#include "cohort/v1/ranges.pb.h"

namespace cohort::launcher {

class RangeColumns {
 public:
  // Fills `columns`, which outlive this.
  explicit RangeColumns(v1::RankRanges* columns) : columns_(columns) {}

  void Add(const runtime::RangeRecord& range);
  void AddMissed(uint64_t missed) { columns_->set_missed(columns_->missed() + missed); }

 private:
  v1::RankRanges* columns_;
  std::unordered_map<std::string, uint32_t> names_;  // in `columns_`
  uint64_t last_start_ns_ = 0;                       // in `columns_`
};

}  // namespace cohort::launcher
