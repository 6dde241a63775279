// Flat gather: every rank sends its block to the root.
//
// Every byte moves once, straight to its place; the root's port is the limit, so for large blocks nothing is faster.
//
//   rank 1..3      send x1, x2, x3 to 0
//   rank 0 (root)  out = x0 x1 x2 x3
//
// Cost, blocks of n bytes: 1 round; (p-1) n bytes into the root.
// Any size and root. Source: textbook (linear gather).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildGatherFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.rank != request.root) {
    builder.Send(request.root, builder.In());
    return std::move(builder).Build();
  }
  builder.Copy(builder.Out(request.rank), builder.In());
  for (int i = 1; i < request.size; ++i) {
    const int peer = Modulo(request.rank + i, request.size);
    builder.Recv(peer, builder.Out(peer));
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfGatherFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
