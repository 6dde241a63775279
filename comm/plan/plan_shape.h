// Finds errors in plans without running them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

// OK when the plans are those of ranks 0, 1, ... of one operation, every step stays inside its buffers, moves chunks of
// equal lengths and leaves the input alone, and no lane touches what another one writes. Else kInvalidArgument.
absl::Status CheckShape(std::span<const Plan> plans);

// kInvalidArgument: "rank 2, lane 0, step 5 (recv out[3] = rank 1) `why`".
absl::Status RefuseStep(const Plan& plan, size_t lane, size_t step, const std::string& why);

}  // namespace cohort::comm
