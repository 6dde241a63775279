// Flat barrier: every rank publishes an empty message and waits for everybody else's.
//
// One message time where a publish is one write; p-1 messages per rank where it is not.
//
//   every rank     publish nothing; read nothing from all others
//
// Cost: 1 round, no bytes.
// Any size. Source: textbook (all-to-all flags).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBarrierFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size > 1) builder.Publish(PlanBuilder::Nothing());
  for (int i = 1; i < request.size; ++i) {
    builder.RecvPublished(Modulo(request.rank + i, request.size), PlanBuilder::Nothing());
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfBarrierFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  return {.rounds = 1, .messages = query.size - 1, .chunks = 0, .critical = 0, .reduced = 0};
}

}  // namespace cohort::comm
