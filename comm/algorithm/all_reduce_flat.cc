// Flat all-reduce: every rank publishes its block, reads everybody else's and combines them in rank order.
//
// One message time, no leader, and the same bits on every rank, because all associate from rank 0 on. Reads p-1 blocks
// per rank, so it is for small blocks and few ranks. In place the sum is collected in scratch memory: the block must
// stay as it is until all have read it. A fold of all operands at once writes it when they have.
//
//   every rank     publish x(rank); out = ((x0 op x1) op x2) op x3, reading the others' publishes
//
// Cost, n bytes: 1 round; (p-1) n bytes into every rank, which combines as many.
// Any size. Source: "publish own slot, read the others'", as in the release-gather and XHC small-message paths.
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size > 1) builder.Publish(builder.In());
  const bool aside = request.size > 1 && !request.fold_once && builder.Aliased(builder.In(), builder.Out());
  const Slice result = aside ? builder.NewScratch() : builder.Out();
  ReduceInRankOrder(builder, request, builder.In(), result, true);
  if (aside) builder.Copy(builder.Out(), result);
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
