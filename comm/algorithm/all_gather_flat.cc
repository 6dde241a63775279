// Flat all-gather: every rank publishes its block and reads everybody else's.
//
// One message time and no forwarding: in shared memory every byte is written once and read by each rank once. Readers
// start at their right neighbour, so that they do not all read the same block at once.
//
//   every rank     publish x(rank); out = x0 x1 x2 x3, reading the others' publishes
//
// Cost, blocks of n bytes: 1 round; (p-1) n bytes into every rank.
// Any size. Source: textbook (direct all-gather).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllGatherFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size > 1) builder.Publish(builder.In());
  builder.Copy(builder.Out(request.rank), builder.In());
  for (int i = 1; i < request.size; ++i) {
    const int peer = Modulo(request.rank + i, request.size);
    builder.RecvPublished(peer, builder.Out(peer));
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllGatherFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
