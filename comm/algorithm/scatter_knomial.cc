// K-nomial tree scatter: the root sends each child the blocks of the child's subtree, and so on down.
//
// Few messages where the flat scatter has p-1 out of one rank, at the price of forwarding: for small blocks. Radix 2
// ("binomial") has the fewest messages out of one rank; higher radices are shallower.
//
//   radix 2, root 0:   0 -> 2 (x2 x3)    0 -> 1 (x1), 2 -> 3 (x3)
//
// Cost, blocks of n bytes: d rounds, d the largest number with (K^d - 1) / (K - 1) < p (radix 2: floor(log2 p));
// (p-1) n bytes out of the root.
// Any size and root. Source: textbook (binomial scatter, MPICH; k-nomial, UCC).
#include <utility>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree_blocks.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

Plan ScatterKnomial(const PlanRequest& request, int radix) {
  PlanBuilder builder(request);
  const TreeBlocks blocks(builder, request, radix, BufferId::kIn, builder.Out());
  const TreePlace& place = blocks.place();
  if (!blocks.root()) {
    blocks.ForEachRange(place.relative, place.span, [&](const Slice& slice) { builder.Recv(place.parent, slice); });
  }
  for (const TreeChild& child : place.children) {
    blocks.ForEachRange(child.relative, child.span, [&](const Slice& slice) { builder.Send(child.rank, slice); });
  }
  if (blocks.apart()) builder.Copy(builder.Out(), blocks.Own());
  return std::move(builder).Build();
}

}  // namespace

Plan BuildScatterBinomial(const PlanRequest& request) { return ScatterKnomial(request, 2); }
AlgorithmCost CostOfScatterBinomial(const CostQuery& query) { return TreeBlocksCost(query, 2); }
Plan BuildScatterKnomial4(const PlanRequest& request) { return ScatterKnomial(request, 4); }
AlgorithmCost CostOfScatterKnomial4(const CostQuery& query) { return TreeBlocksCost(query, 4); }
Plan BuildScatterKnomial8(const PlanRequest& request) { return ScatterKnomial(request, 8); }
AlgorithmCost CostOfScatterKnomial8(const CostQuery& query) { return TreeBlocksCost(query, 8); }

}  // namespace cohort::comm
