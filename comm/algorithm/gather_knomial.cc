// K-nomial tree gather: every rank collects the blocks of its subtree and sends them to its parent together.
//
// Few messages where the flat gather has p-1 into one rank, at the price of forwarding: for small blocks. Radix 2
// ("binomial") has the fewest messages into one rank; higher radices are shallower.
//
//   radix 2, root 0:   1 -> 0 (x1), 3 -> 2 (x3)    2 -> 0 (x2 x3)
//
// Cost, blocks of n bytes: d rounds, d the largest number with (K^d - 1) / (K - 1) < p (radix 2: floor(log2 p));
// (p-1) n bytes into the root.
// Any size and root. Source: textbook (binomial gather, MPICH; k-nomial, UCC).
#include <utility>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree_blocks.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

Plan GatherKnomial(const PlanRequest& request, int radix) {
  PlanBuilder builder(request);
  const TreeBlocks blocks(builder, request, radix, BufferId::kOut, builder.In());
  const TreePlace& place = blocks.place();
  if (blocks.apart()) builder.Copy(blocks.Own(), builder.In());
  for (size_t i = place.children.size(); i-- > 0;) {
    const TreeChild& child = place.children[i];
    blocks.ForEachRange(child.relative, child.span, [&](const Slice& slice) { builder.Recv(child.rank, slice); });
  }
  if (!blocks.root()) {
    blocks.ForEachRange(place.relative, place.span, [&](const Slice& slice) { builder.Send(place.parent, slice); });
  }
  return std::move(builder).Build();
}

}  // namespace

Plan BuildGatherBinomial(const PlanRequest& request) { return GatherKnomial(request, 2); }
AlgorithmCost CostOfGatherBinomial(const CostQuery& query) { return TreeBlocksCost(query, 2); }
Plan BuildGatherKnomial4(const PlanRequest& request) { return GatherKnomial(request, 4); }
AlgorithmCost CostOfGatherKnomial4(const CostQuery& query) { return TreeBlocksCost(query, 4); }
Plan BuildGatherKnomial8(const PlanRequest& request) { return GatherKnomial(request, 8); }
AlgorithmCost CostOfGatherKnomial8(const CostQuery& query) { return TreeBlocksCost(query, 8); }

}  // namespace cohort::comm
