// The cost of the signature check and the black box in a call: the functions that every collective runs, timed twice.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/collperf/session.h"

namespace cohort::collperf {

struct Cost {
  // Nanoseconds in a loop of their own, everything in cache.
  double signature_ns = 0;  // build the hash of a call and compare it with a peer's
  double black_box_ns = 0;  // start and finish a record
  // An 8-byte all-reduce, calls back to back, medians of batches taken in turn: as it is, and with both done once
  // more in every call.
  double call_ns = 0;
  double doubled_ns = 0;
};

// Collective.
absl::StatusOr<Cost> MeasureCost(Session& session);
std::string CostText(const Cost& cost);

}  // namespace cohort::collperf
