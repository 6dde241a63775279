// The promise of a collective, as expressions of symbols: the checker's standard.
#pragma once

#include <cstdint>

#include "cohort/comm/plan/expression.h"
#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

// Returns what must lie in out[chunk] of the plan's rank in the end: `found` itself if it is right, else what should be
// there instead (kUnwritten for a reduction, which may be associated in any way).
ExpressionTable::Id ExpectedOutput(const Plan& plan, int32_t chunk, ExpressionTable::Id found,
                                   ExpressionTable& expressions);

// For kinds that combine: out[chunk] as ((x0 op x1) op x2) ...
ExpressionTable::Id RankOrderFold(const Plan& plan, int32_t chunk, ExpressionTable& expressions);

}  // namespace cohort::comm
