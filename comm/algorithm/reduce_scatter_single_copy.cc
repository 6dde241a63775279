// Single-copy reduce-scatter: every rank folds its block of all inputs, where they lie, into its output.
//
// Needs ranks that reach each other's memory, as those of one host do. Association as in a serial loop over the ranks.
//
//   all            tell each other where their buffers lie
//   every rank r   out = ((x0 op x1) op x2) op x3 of block r
//   all            meet
//
// Cost, blocks of n bytes: 2 rounds; (p-1) n bytes read from others by each rank, which combines as many.
// Any size. Source: as all_reduce_single_copy.cc.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  std::vector<RankSlice> sources;
  for (int rank = 0; rank < request.size; ++rank) sources.push_back({rank, builder.In(request.rank)});
  return std::move(builder.Open().Fold({{request.rank, builder.Out()}}, sources).Meet()).Build();
}

AlgorithmCost CostOfReduceScatterSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 2,
          .messages = 2 * int64_t{query.size - 1},
          .chunks = all,
          .critical = all,
          .reduced = all,
          .accesses = int64_t{query.size - 1}};
}

}  // namespace cohort::comm
