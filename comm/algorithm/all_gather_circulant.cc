// Circulant all-gather: in each round every rank doubles the number of blocks it has.
//
// Bruck's all-gather with the blocks received straight into their places. The fewest rounds together with the least
// volume, for every size.
//
//   round 0: r -> r-1: block r    round 1: r -> r-2: blocks r, r+1
//
// Cost, blocks of n bytes: ceil(log2 p) rounds; (p-1) n bytes out of and into each rank.
// Any size. Source: Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE TPDS 1997).
#include <utility>

#include "cohort/comm/algorithm/circulant.h"
#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllGatherCirculant(const PlanRequest& request) {
  PlanBuilder builder(request);
  builder.Copy(builder.Out(request.rank), builder.In());  // later rounds send the own block with others from there
  CirculantAllGather(builder, request, builder.In(),
                     [&](int part, int, int count) { return builder.Out(part, count); });
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllGatherCirculant(const CostQuery& query) {
  const int64_t rounds = CeilLog2(query.size);
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = rounds, .messages = rounds, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
