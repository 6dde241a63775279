// K-nomial tree reduce: every rank combines what its children send with its own block and sends that to its parent.
//
// The broadcast's tree turned round: the smallest subtrees, which are ready first, are received first. Inner ranks
// collect in scratch memory. The association depends on size and root only, and joins neighbouring ranks.
//
//   radix 2, root 0:   1 -> 0, 3 -> 2    2 -> 0        out = (x0 op x1) op (x2 op x3)
//
// Cost, n bytes: d rounds, d the largest number with (K^d - 1) / (K - 1) < p (radix 2: floor(log2 p));
// c n bytes into the root, which combines as many, c its children (radix 2: ceil(log2 p)).
// Any size and root. Source: textbook; k-nomial as in MPICH and UCC.
#include <utility>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

Plan ReduceKnomial(const PlanRequest& request, int radix) {
  PlanBuilder builder(request);
  const TreePlace place = PlaceInTree(request.size, request.rank, request.root, radix);
  const bool root = place.parent < 0;
  Slice sum = builder.In();
  if (!place.children.empty()) {
    const Slice target = root ? builder.Out() : builder.NewScratch();
    for (size_t i = place.children.size(); i-- > 0;) {
      builder.RecvReduce(place.children[i].rank, target, sum);
      sum = target;
    }
  }
  if (!root) {
    builder.Send(place.parent, sum);
  } else if (place.children.empty()) {
    builder.Copy(builder.Out(), builder.In());
  }
  return std::move(builder).Build();
}

AlgorithmCost Cost(const CostQuery& query, int radix) {
  const int64_t children = RootChildren(query.size, radix);
  const int64_t all = children * query.pieces;
  return {.rounds = TreeDepth(query.size, radix), .messages = children, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace

Plan BuildReduceBinomial(const PlanRequest& request) { return ReduceKnomial(request, 2); }
AlgorithmCost CostOfReduceBinomial(const CostQuery& query) { return Cost(query, 2); }
Plan BuildReduceKnomial4(const PlanRequest& request) { return ReduceKnomial(request, 4); }
AlgorithmCost CostOfReduceKnomial4(const CostQuery& query) { return Cost(query, 4); }
Plan BuildReduceKnomial8(const PlanRequest& request) { return ReduceKnomial(request, 8); }
AlgorithmCost CostOfReduceKnomial8(const CostQuery& query) { return Cost(query, 8); }

}  // namespace cohort::comm
