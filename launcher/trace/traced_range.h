// Spans of time that a rank's program has named, and the steps that it has marked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cohort/runtime/ranges/range_ring.h"

namespace cohort::launcher {

// A rank began a step of its program.
struct StepMark {
  uint32_t rank = 0;
  uint64_t number = 0;
  uint64_t ns = 0;
};

// A range of a rank by node 0's clock; not a step.
struct TracedRange {
  uint32_t rank = 0;
  size_t node = 0;
  std::string_view name;
  runtime::RangeLane lane = runtime::RangeLane::kProgram;
  uint16_t line = 0;  // below runtime::kRangeLines
  uint64_t number = runtime::kNoNumber;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
};

}  // namespace cohort::launcher
