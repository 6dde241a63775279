// Reduce by reduce-scatter and gather: the circulant reduce-scatter of one part for each rank, and a binomial gather.
//
// Twice the least volume in twice the fewest rounds: for middling blocks among many ranks, where a tree moves and
// combines the whole block log2 p times and a chain has too many rounds. Parts are counted from the root.
//
//   root 0:   every rank r: to r+2 (parts r+2, r+3), to r+1 (part r+1)    1 -> 0 (part 1), 3 -> 2 (part 3)
//                                                                         2 -> 0 (parts 2 3)
//
// Cost, n bytes: ceil(log2 p) + floor(log2 p) rounds; 2 (p-1)/p n bytes into the root, half of them combined.
// Any size and root; parts are equal where the pieces are a multiple of p. Source: Rabenseifner (ICCS 2004); the
// reduce-scatter: Träff (2024).
#include <utility>

#include "cohort/comm/algorithm/circulant.h"
#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterGather(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const TreePlace place = PlaceInTree(size, request.rank, request.root, 2);
  const bool root = place.parent < 0;
  if (size == 1) {
    builder.Copy(builder.Out(), builder.In());
    return std::move(builder).Build();
  }
  const Slice sums = root ? builder.Out() : builder.NewScratch();
  const PartsAt in = [&](int part, int, int count) { return Parts(builder.In(), part, count, size); };
  const PartsAt work = [&](int part, int, int count) { return Parts(sums, part, count, size); };
  CirculantReduceScatter(builder, request, in, work, Part(sums, place.relative, size), request.root);
  for (size_t i = place.children.size(); i-- > 0;) {
    const TreeChild& child = place.children[i];
    builder.Recv(child.rank, Parts(sums, child.relative, child.span, size));
  }
  if (!root) builder.Send(place.parent, Parts(sums, place.relative, place.span, size));
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterGather(const CostQuery& query) {
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  const int64_t rounds = CeilLog2(query.size);
  return {.rounds = rounds + TreeDepth(query.size, 2),
          .messages = 2 * rounds,
          .chunks = 2 * (query.size - 1) * part,
          .critical = 2 * (query.size - 1) * part,
          .reduced = (query.size - 1) * part,
          .total = query.size * (query.size - 1) * part + query.size * rounds / 2 * part};
}

}  // namespace cohort::comm
