// The cost of a small all-reduce, layer by layer, in instructions and nanoseconds; and what the signature and the black
// box cost in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/collperf/rank_session.h"

namespace cohort::collperf {

// A part of an 8-byte all-reduce that repeats an earlier one, by itself, everything in cache.
struct LayerCost {
  std::string name;
  double ns = 0;              // 0: not timed by itself
  uint64_t instructions = 0;  // 0: not counted
  bool is_bounded = false;    // signature, black box: the time of all such layers together has a bound
};

// A check (COHORT_CHECK) of one call's memory, in cache, by itself.
struct CheckCost {
  std::string name;
  uint64_t instructions = 0;  // for 8 bytes; 0: not counted
  double gb_per_s = 0;        // of 1 MiB
};

struct Cost {
  // An 8-byte all-reduce, calls back to back, medians of batches taken in turn: as it is, and with a signature and a
  // record of the black box more in every call.
  double call_ns = 0;
  double doubled_ns = 0;

  std::vector<LayerCost> layers;
  std::vector<CheckCost> checks;
  // The whole call on rank 0, whose peers' messages are there already; 0: not counted.
  uint64_t call_instructions = 0;
  std::string counted_by;  // "perf_event", "single steps", or why nothing was counted
};

// Collective.
absl::StatusOr<Cost> MeasureCost(RankSession& session);
std::string CostText(const Cost& cost);

}  // namespace cohort::collperf
