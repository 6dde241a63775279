// Binomial scatter: the root sends each child the blocks of the child's subtree, and so on down.
//
// Few messages where the flat scatter has p-1 out of one rank, at the price of forwarding: for small blocks. A subtree
// is a range of ranks counted from the root; where that range wraps past the last rank it travels as two messages,
// because it lies in two places of the root's buffer.
//
//   root 0:   0 -> 2 (x2 x3)    0 -> 1 (x1), 2 -> 3 (x3)
//
// Cost, blocks of n bytes: floor(log2 p) rounds; (p-1) n bytes out of the root.
// Any size and root. Source: textbook (binomial scatter, MPICH).
#include <algorithm>
#include <utility>

#include "comm/algorithm/registry.h"
#include "comm/algorithm/tree.h"
#include "comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildScatterBinomial(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const TreePlace place = PlaceInTree(size, request.rank, request.root, 2);
  const bool root = place.parent < 0;
  const bool inner = !root && place.span > 1;
  const Slice scratch = inner ? builder.NewScratch(place.span) : PlanBuilder::Nothing();
  // The blocks [relative, relative + count), which do not wrap.
  const auto where = [&](int relative, int count) {
    if (root) return builder.In((relative + request.root) % size, count);
    return inner ? Parts(scratch, relative - place.relative, count, place.span) : builder.Out();
  };
  const auto for_each_range = [&](int relative, int count, const auto& visit) {
    const int until_wrap = relative + request.root < size ? size - request.root - relative : size - relative;
    const int first = std::min(count, until_wrap);
    visit(where(relative, first));
    if (first < count) visit(where(relative + first, count - first));
  };
  if (!root) {
    for_each_range(place.relative, place.span, [&](const Slice& slice) { builder.Recv(place.parent, slice); });
  }
  for (const TreeChild& child : place.children) {
    for_each_range(child.relative, child.span, [&](const Slice& slice) { builder.Send(child.rank, slice); });
  }
  if (root || inner) builder.Copy(builder.Out(), where(place.relative, 1));
  return std::move(builder).Build();
}

AlgorithmCost CostOfScatterBinomial(const CostQuery& query) {
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = TreeDepth(query.size, 2),
          .messages = RootChildren(query.size, 2),
          .chunks = all,
          .critical = all,
          .reduced = 0};
}

}  // namespace cohort::comm
