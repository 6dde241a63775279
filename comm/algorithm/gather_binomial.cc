// Binomial gather: every rank collects the blocks of its subtree and sends them to its parent together.
//
// Few messages where the flat gather has p-1 into one rank, at the price of forwarding: for small blocks. A subtree is
// a range of ranks counted from the root; where that range wraps past the last rank it travels as two messages, because
// it lies in two places of the root's buffer.
//
//   root 0:   1 -> 0 (x1), 3 -> 2 (x3)    2 -> 0 (x2 x3)
//
// Cost, blocks of n bytes: floor(log2 p) rounds; (p-1) n bytes into the root.
// Any size and root. Source: textbook (binomial gather, MPICH).
#include <algorithm>
#include <utility>

#include "comm/algorithm/registry.h"
#include "comm/algorithm/tree.h"
#include "comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildGatherBinomial(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const TreePlace place = PlaceInTree(size, request.rank, request.root, 2);
  const bool root = place.parent < 0;
  const bool inner = !root && place.span > 1;
  const Slice scratch = inner ? builder.NewScratch(place.span) : PlanBuilder::Nothing();
  // The blocks [relative, relative + count), which do not wrap.
  const auto where = [&](int relative, int count) {
    if (root) return builder.Out((relative + request.root) % size, count);
    return inner ? Parts(scratch, relative - place.relative, count, place.span) : builder.In();
  };
  const auto for_each_range = [&](int relative, int count, const auto& visit) {
    const int until_wrap = relative + request.root < size ? size - request.root - relative : size - relative;
    const int first = std::min(count, until_wrap);
    visit(where(relative, first));
    if (first < count) visit(where(relative + first, count - first));
  };
  if (root || inner) builder.Copy(where(place.relative, 1), builder.In());
  for (size_t i = place.children.size(); i-- > 0;) {
    const TreeChild& child = place.children[i];
    for_each_range(child.relative, child.span, [&](const Slice& slice) { builder.Recv(child.rank, slice); });
  }
  if (!root) {
    for_each_range(place.relative, place.span, [&](const Slice& slice) { builder.Send(place.parent, slice); });
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfGatherBinomial(const CostQuery& query) {
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = TreeDepth(query.size, 2),
          .messages = RootChildren(query.size, 2),
          .chunks = all,
          .critical = all,
          .reduced = 0};
}

}  // namespace cohort::comm
