// Flat reduce-scatter: every rank sends each block to its owner, which combines what it gets in rank order.
//
// One message time and the least volume there is; every rank receives from all others at once, which networks like
// less than a ring does. The association is that of a serial loop over the ranks.
//
//   every rank     send block j to rank j; out = ((x0 op x1) op x2) op x3 of its own block
//
// Cost, blocks of n bytes: 1 round; (p-1) n bytes out of and into every rank, which combines as many.
// Any size. Source: textbook (direct reduce-scatter).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  for (int i = 1; i < request.size; ++i) {
    const int peer = Modulo(request.rank + i, request.size);
    builder.Send(peer, builder.In(peer));
  }
  ReduceInRankOrder(builder, request, builder.In(request.rank), builder.Out(), false);
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
