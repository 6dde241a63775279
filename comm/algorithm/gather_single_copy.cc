// Single-copy gather: every rank stores its block into the root's output, where it lies.
//
// The root copies its own block meanwhile. Needs ranks that reach each other's memory, as those of one host do.
//
//   all            tell each other where their buffers lie
//   every rank r   block r of the root's out = its block
//   all            meet
//
// Cost, blocks of n bytes: 2 rounds; n bytes stored into the root's memory by each other rank.
// Any size. Source: as all_reduce_single_copy.cc.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildGatherSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  builder.Open().Fold({{request.root, builder.Out(request.rank)}}, {{request.rank, builder.In()}});
  return std::move(builder.Meet()).Build();
}

AlgorithmCost CostOfGatherSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  return {.rounds = 2,
          .messages = 2 * int64_t{query.size - 1},
          .chunks = query.pieces,
          .critical = query.pieces,
          .reduced = 0,
          .accesses = 1};
}

}  // namespace cohort::comm
