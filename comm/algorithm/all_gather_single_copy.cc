// Single-copy all-gather: every rank stores its block into all outputs, where they lie.
//
// Stores rather than fetches, because the block was most likely written by its owner just now and lies in its cache.
// Needs ranks that reach each other's memory, as those of one host do.
//
//   all            tell each other where their buffers lie
//   every rank r   block r of every out = its block
//   all            meet
//
// Cost, blocks of n bytes: 2 rounds; (p-1) n bytes stored into others' memory by each rank.
// Any size. Source: as all_reduce_single_copy.cc.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllGatherSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  std::vector<RankSlice> targets;
  for (int i = 0; i < request.size; ++i) {
    targets.push_back({Modulo(request.rank + i, request.size), builder.Out(request.rank)});
  }
  return std::move(builder.Open().Fold(targets, {{request.rank, builder.In()}}).Meet()).Build();
}

AlgorithmCost CostOfAllGatherSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 2,
          .messages = 2 * int64_t{query.size - 1},
          .chunks = all,
          .critical = all,
          .reduced = 0,
          .accesses = int64_t{query.size - 1}};
}

}  // namespace cohort::comm
