// Broadcast by scatter and all-gather: a binomial scatter of one part for each rank, and the circulant all-gather.
//
// Twice the least volume in twice the fewest rounds: for middling blocks among many ranks, where a tree sends the whole
// block log2 p times and a chain has too many rounds. Parts are counted from the root.
//
//   root 0:   0 -> 2 (parts 2 3)    0 -> 1 (part 1), 2 -> 3 (part 3)    then every rank r: to r-1, r-2, from r+1, r+2
//
// Cost, n bytes: floor(log2 p) + ceil(log2 p) rounds; 2 (p-1)/p n bytes out of the root.
// Any size and root; parts are equal where the pieces are a multiple of p. Source: van de Geijn (as in MPICH).
#include <utility>

#include "cohort/comm/algorithm/circulant.h"
#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBroadcastScatterAllGather(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const TreePlace place = PlaceInTree(size, request.rank, request.root, 2);
  const bool root = place.parent < 0;
  const Slice from = root ? builder.In() : builder.Out();
  if (!root) builder.Recv(place.parent, Parts(builder.Out(), place.relative, place.span, size));
  for (const TreeChild& child : place.children) builder.Send(child.rank, Parts(from, child.relative, child.span, size));
  if (root) builder.Copy(builder.Out(), builder.In());
  const PartsAt out = [&](int part, int, int count) { return Parts(builder.Out(), part, count, size); };
  CirculantAllGather(builder, request, Part(builder.Out(), place.relative, size), out, request.root);
  return std::move(builder).Build();
}

AlgorithmCost CostOfBroadcastScatterAllGather(const CostQuery& query) {
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  const int64_t rounds = CeilLog2(query.size);
  return {.rounds = TreeDepth(query.size, 2) + rounds,
          .messages = 2 * rounds,
          .chunks = 2 * (query.size - 1) * part,
          .critical = 2 * (query.size - 1) * part,
          .reduced = 0,
          .total = query.size * rounds / 2 * part + query.size * (query.size - 1) * part};
}

}  // namespace cohort::comm
