// K-nomial tree broadcast: the root sends to its children, they send to theirs.
//
// Every rank that has the block passes it on, so the number of ranks that have it grows by K every K-1 message times.
// Radix 2
// ("binomial") has the fewest messages one after another; radix 4 ("knomial4") is shallower and wins where posting
// another message is cheap against waiting for one. Largest subtrees are served first.
//
//   radix 2, root 0:   0 -> 2    0 -> 1, 2 -> 3
//
// Cost, n bytes: d rounds, d the largest number with (K^d - 1) / (K - 1) < p (radix 2: floor(log2 p));
// c n bytes out of the root, c its children (radix 2: ceil(log2 p)).
// Any size and root. Source: textbook; k-nomial as in MPICH and UCC.
#include <utility>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

Plan BroadcastKnomial(const PlanRequest& request, int radix) {
  PlanBuilder builder(request);
  const TreePlace place = PlaceInTree(request.size, request.rank, request.root, radix);
  const bool root = place.parent < 0;
  if (!root) builder.Recv(place.parent, builder.Out());
  for (const TreeChild& child : place.children) builder.Send(child.rank, root ? builder.In() : builder.Out());
  if (root) builder.Copy(builder.Out(), builder.In());
  return std::move(builder).Build();
}

AlgorithmCost Cost(const CostQuery& query, int radix) {
  const int64_t children = RootChildren(query.size, radix);
  const int64_t all = children * query.pieces;
  return {.rounds = TreeDepth(query.size, radix),
          .messages = children,
          .chunks = all,
          .critical = all,
          .reduced = 0,
          .read_critical = TreeDepth(query.size, radix) * query.pieces};
}

}  // namespace

Plan BuildBroadcastBinomial(const PlanRequest& request) { return BroadcastKnomial(request, 2); }
AlgorithmCost CostOfBroadcastBinomial(const CostQuery& query) { return Cost(query, 2); }
Plan BuildBroadcastKnomial4(const PlanRequest& request) { return BroadcastKnomial(request, 4); }
AlgorithmCost CostOfBroadcastKnomial4(const CostQuery& query) { return Cost(query, 4); }
Plan BuildBroadcastKnomial8(const PlanRequest& request) { return BroadcastKnomial(request, 8); }
AlgorithmCost CostOfBroadcastKnomial8(const CostQuery& query) { return Cost(query, 8); }

}  // namespace cohort::comm
