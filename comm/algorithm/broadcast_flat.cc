// Flat broadcast: the root publishes its block once and every other rank reads it.
//
// If publishing is one write that all can read (shared memory), nothing beats it for small blocks: one message time
// whatever the size. If it is not, the root sends the block to each rank, and a tree is better.
//
//   rank 0 (root)  publish x
//   rank 1..3      read x from 0
//
// Cost, n bytes: 1 round; n bytes out of the root (as often as there are readers where publishes are sends).
// Any size and root. Source: the flat trees of XHC (IEEE Cluster 2022).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBroadcastFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.rank == request.root) {
    if (request.size > 1) builder.Publish(builder.In());
    builder.Copy(builder.Out(), builder.In());
  } else {
    builder.RecvPublished(request.root, builder.Out());
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfBroadcastFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int sends = query.fanout ? 1 : query.size - 1;
  const int64_t all = int64_t{sends} * query.pieces;
  return {.rounds = 1, .messages = sends, .chunks = all, .critical = all, .reduced = 0, .read_critical = query.pieces};
}

}  // namespace cohort::comm
