// The predicted time of compositions of two levels, as the sum of their parts, and the best of them for a call.
#pragma once

#include <cstdint>
#include <vector>

#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/select/cost_model.h"
#include "cohort/comm/select/tuning.h"

namespace cohort::comm {

// The shape that the selector knows of a group's nodes.
NodeShape ShapeOf(const GroupTopology& topology);

// PredictMicroseconds of a composition: its parts one after another, inside by the figures of one host and between by
// those of the network.
double PredictComposition(const AlgorithmInfo& algorithm, int32_t pieces, int64_t bytes, const GroupTopology& topology,
                          const Tuning& tuning);

// For each scheme that can serve the group: the composition of the best inner and the best outer algorithm.
std::vector<const AlgorithmInfo*> BestCompositions(CollectiveKind kind, int64_t bytes, const GroupTopology& topology,
                                                   const Tuning& tuning);

}  // namespace cohort::comm
