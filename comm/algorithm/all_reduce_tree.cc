// Tree all-reduce: a k-nomial reduce to rank 0, and a broadcast of the result down the same tree.
//
// Twice the rounds of recursive doubling, but only 2 (p-1) messages in all where that has p log2 p: for small blocks
// among very many ranks, or where the network is oversubscribed. One rank makes the result: the same bits everywhere.
//
//   radix 2:   1 -> 0, 3 -> 2    2 -> 0        out = (x0 op x1) op (x2 op x3)
//              0 -> 2            0 -> 1, 2 -> 3
//
// Cost, n bytes: 2 d rounds, d the largest number with (K^d - 1) / (K - 1) < p (radix 2: floor(log2 p)); c n bytes into
// and out of rank 0, which combines as many, c its children (radix 2: ceil(log2 p)).
// Any size. Source: textbook; "nonoverlapping" in Open MPI.
#include <utility>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

Plan AllReduceTree(const PlanRequest& request, int radix) {
  PlanBuilder builder(request);
  const TreePlace place = PlaceInTree(request.size, request.rank, 0, radix);
  Slice sum = builder.In();
  for (size_t i = place.children.size(); i-- > 0;) {
    builder.RecvReduce(place.children[i].rank, builder.Out(), sum);
    sum = builder.Out();
  }
  if (place.parent >= 0) {
    builder.Send(place.parent, sum);
    builder.Recv(place.parent, builder.Out());
  } else {
    builder.Copy(builder.Out(), sum);
  }
  for (const TreeChild& child : place.children) builder.Send(child.rank, builder.Out());
  return std::move(builder).Build();
}

AlgorithmCost Cost(const CostQuery& query, int radix) {
  const int64_t children = RootChildren(query.size, radix);
  const int64_t all = children * query.pieces;
  return {.rounds = 2 * TreeDepth(query.size, radix),
          .messages = children,
          .chunks = all,
          .critical = 2 * all,
          .reduced = all,
          .read_critical = all + TreeDepth(query.size, radix) * query.pieces,
          .total = 2 * int64_t{query.size - 1} * query.pieces};
}

}  // namespace

Plan BuildAllReduceBinomial(const PlanRequest& request) { return AllReduceTree(request, 2); }
AlgorithmCost CostOfAllReduceBinomial(const CostQuery& query) { return Cost(query, 2); }
Plan BuildAllReduceKnomial4(const PlanRequest& request) { return AllReduceTree(request, 4); }
AlgorithmCost CostOfAllReduceKnomial4(const CostQuery& query) { return Cost(query, 4); }

}  // namespace cohort::comm
