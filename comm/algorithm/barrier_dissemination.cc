// Dissemination barrier: in round k every rank tells the one 2^k places to the right that it has entered, and so have
// all ranks whose messages it has got.
//
// The fewest rounds for any size, one message per rank and round: for larger groups and between hosts.
//
//   round 0: 0 -> 1 -> 2 -> 3 -> 0    round 1: 0 <-> 2, 1 <-> 3
//
// Cost: ceil(log2 p) rounds, no bytes.
// Any size. Source: Hensgen, Finkel, Manber (IJPP 1988).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBarrierDissemination(const PlanRequest& request) {
  PlanBuilder builder(request);
  for (int distance = 1; distance < request.size; distance *= 2) {
    builder.Send(Modulo(request.rank + distance, request.size), PlanBuilder::Nothing());
    builder.Recv(Modulo(request.rank - distance, request.size), PlanBuilder::Nothing());
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfBarrierDissemination(const CostQuery& query) {
  const int64_t rounds = CeilLog2(query.size);
  return {.rounds = rounds, .messages = rounds, .chunks = 0, .critical = 0, .reduced = 0};
}

}  // namespace cohort::comm
