// Flat reduce: every rank sends its block to the root, which combines them in rank order.
//
// One message time, and all the work at the root: right for small blocks and few ranks. The association is that of a
// serial loop over the ranks, whatever the root.
//
//   rank 1..3      send x1, x2, x3 to 0
//   rank 0 (root)  out = ((x0 op x1) op x2) op x3
//
// Cost, n bytes: 1 round; (p-1) n bytes into the root, which combines as many.
// Any size and root. Source: textbook (linear reduce).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.rank == request.root) {
    ReduceInRankOrder(builder, request, builder.In(), builder.Out(), false);
  } else {
    builder.Send(request.root, builder.In());
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
