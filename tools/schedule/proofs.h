// Proves schedules over ranges of sizes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::tools {

struct Range {
  int first = 1;
  int last = 1;
};

// "4" or "1-16". kInvalidArgument if it is not a range of whole numbers from 1 to `most`.
absl::StatusOr<Range> ReadRange(const std::string& text, int most);

// Proves the schedule for all these sizes, and that idle time and activations are the formulas'. Returns the number of
// proofs. The error names the sizes.
absl::StatusOr<int> ProveSchedule(const trainer::ScheduleInfo& info, Range ranks, Range micro_batches,
                                  int stages_per_rank);

// "3/11": in lowest terms.
std::string ToText(const trainer::Share& share);

}  // namespace cohort::tools
