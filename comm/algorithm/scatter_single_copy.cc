// Single-copy scatter: every rank fetches its block from the root's input, where it lies.
//
// Needs ranks that reach each other's memory, as those of one host do.
//
//   all            tell each other where their buffers lie
//   every rank r   out = block r of the root's in
//   all            meet
//
// Cost, blocks of n bytes: 2 rounds; n bytes fetched from the root's memory by each other rank.
// Any size. Source: as all_reduce_single_copy.cc.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildScatterSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  builder.Open().Fold({{request.rank, builder.Out()}}, {{request.root, builder.In(request.rank)}});
  return std::move(builder.Meet()).Build();
}

AlgorithmCost CostOfScatterSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  return {.rounds = 2,
          .messages = 2 * int64_t{query.size - 1},
          .chunks = query.pieces,
          .critical = query.pieces,
          .reduced = 0,
          .accesses = 1};
}

}  // namespace cohort::comm
