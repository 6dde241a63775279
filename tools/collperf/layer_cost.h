// The layers of an 8-byte all-reduce, each by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/collperf/cost.h"
#include "tools/collperf/rank_session.h"
#include "tools/measure/instruction_counter.h"

namespace cohort::collperf {

// Collective. `counter` is null where instructions can't be counted. Layers of the shared-memory transport are left out
// where the ranks do not all use it.
absl::StatusOr<std::vector<LayerCost>> MeasureLayers(RankSession& session, measure::InstructionCounter* counter);
// Collective. Instructions of the whole call on rank 0, the least of several; 0 elsewhere, and without a counter.
absl::StatusOr<uint64_t> CountCall(RankSession& session, measure::InstructionCounter* counter);

}  // namespace cohort::collperf
