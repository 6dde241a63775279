// Single-copy broadcast: the others fetch the block from the root's memory, which stores a share of it into theirs.
//
// The root does not stand idle: it stores the last of p parts into every other output, while the others fetch the rest.
// So all p ranks move equally much, half as much as the receivers alone would between two. Needs ranks that reach each
// other's memory, as those of one host do.
//
//   all            tell each other where their buffers lie
//   root           part 3 of every other out = part 3 of its block
//   others         parts 0..2 of out = parts 0..2 of the root's block
//   all            meet
//
// Cost, n bytes: 2 rounds; (p-1)/p n bytes fetched, or stored, by each rank.
// Any size; parts are equal where the pieces are a multiple of p. Source: the "split" of large shared-memory copies
// between both sides.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBroadcastSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  if (size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  builder.Open();
  if (request.rank == request.root) {
    std::vector<RankSlice> targets;
    for (int i = 1; i < size; ++i) {
      targets.push_back({Modulo(request.root + i, size), Part(builder.Out(), size - 1, size)});
    }
    builder.Fold(targets, {{request.root, Part(builder.In(), size - 1, size)}});
    builder.Copy(builder.Out(), builder.In());
  } else {
    builder.Fold({{request.rank, Parts(builder.Out(), 0, size - 1, size)}},
                 {{request.root, Parts(builder.In(), 0, size - 1, size)}});
  }
  return std::move(builder.Meet()).Build();
}

AlgorithmCost CostOfBroadcastSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t others = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2,
          .messages = 2 * others,
          .chunks = others * part,
          .critical = others * part,
          .reduced = 0,
          .accesses = others};
}

}  // namespace cohort::comm
