// Making a segment where there is no agent.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// Creates a segment and attaches to it as local rank 0.
absl::StatusOr<std::unique_ptr<Segment>> CreateAndAttach(const Segment::Options& options);

}  // namespace cohort::runtime
