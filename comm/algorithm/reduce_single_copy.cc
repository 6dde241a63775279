// Single-copy reduce: every rank folds one part of all inputs into the root's output.
//
// The root's work is shared by all, and each byte moves once. Needs ranks that reach each other's memory, as those of
// one host do. Association as in a serial loop over the ranks.
//
//   all            tell each other where their buffers lie
//   every rank r   part r of the root's out = ((x0 op x1) op x2) op x3 of part r
//   all            meet
//
// Cost, n bytes: 2 rounds; (p-1)/p n bytes read from others by each rank, which combines as many.
// Any size. Source: as all_reduce_single_copy.cc.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  std::vector<RankSlice> sources;
  for (int rank = 0; rank < request.size; ++rank) {
    sources.push_back({rank, Part(builder.In(), request.rank, request.size)});
  }
  const RankSlice target{request.root, Part(builder.Out(), request.rank, request.size)};
  return std::move(builder.Open().Fold({target}, sources).Meet()).Build();
}

AlgorithmCost CostOfReduceSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t others = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2,
          .messages = 2 * others,
          .chunks = others * part,
          .critical = others * part,
          .reduced = others * part,
          .read_critical = query.size * part,
          .accesses = others + 1};
}

}  // namespace cohort::comm
