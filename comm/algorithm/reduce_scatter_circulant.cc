// Circulant reduce-scatter: in each round every rank passes the farther half of its blocks on and combines the nearer
// half with what it gets.
//
// The fewest rounds together with the least volume, for every size: no detour for sizes that are no power of two. For
// small and middling blocks, and for large ones where rounds are dear.
//
//   round 0: r -> r+2: blocks r+2, r+3    round 1: r -> r+1: block r+1 (of two ranks)
//
// Cost, blocks of n bytes: ceil(log2 p) rounds; (p-1) n bytes out of and into each rank, which combines as many.
// Any size. Source: Träff, optimal non-pipelined reduce-scatter (2024).
#include <utility>

#include "cohort/comm/algorithm/circulant.h"
#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterCirculant(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  if (size == 1) {
    builder.Copy(builder.Out(), builder.In());
    return std::move(builder).Build();
  }
  const int kept = (size + 1) / 2;
  const Slice scratch = size > 2 ? builder.NewScratch(kept) : PlanBuilder::Nothing();
  CirculantReduceScatter(
      builder, request, [&](int part, int, int count) { return builder.In(part, count); },
      [&](int, int relative, int count) { return Parts(scratch, relative, count, kept); }, builder.Out());
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterCirculant(const CostQuery& query) {
  const int64_t rounds = CeilLog2(query.size);
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = rounds, .messages = rounds, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
