// Flat scatter: the root sends every rank its block.
//
// Every byte moves once, straight to its place; the root's port is the limit, so for large blocks nothing is faster.
//
//   rank 0 (root)  send x1 to 1, x2 to 2, x3 to 3
//   rank 1..3      out = x(rank)
//
// Cost, blocks of n bytes: 1 round; (p-1) n bytes out of the root.
// Any size and root. Source: textbook (linear scatter).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildScatterFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.rank != request.root) {
    builder.Recv(request.root, builder.Out());
    return std::move(builder).Build();
  }
  for (int i = 1; i < request.size; ++i) {
    const int peer = Modulo(request.rank + i, request.size);
    builder.Send(peer, builder.In(peer));
  }
  builder.Copy(builder.Out(), builder.In(request.rank));
  return std::move(builder).Build();
}

AlgorithmCost CostOfScatterFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1,
          .messages = query.size - 1,
          .chunks = all,
          .critical = all,
          .reduced = 0,
          .read_critical = query.pieces};
}

}  // namespace cohort::comm
