// Single-copy all-to-all: every rank stores each of its blocks into its receiver's output, where it lies.
//
// Needs ranks that reach each other's memory, as those of one host do. In place the blocks are set aside first, because
// the others' blocks arrive where they lie.
//
//   all            tell each other where their buffers lie
//   every rank r   block r of rank j's out = its block j, for every j
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

Plan BuildAllToAllSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  if (size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  const bool aside = builder.Aliased(builder.In(0, size), builder.Out(0, size));
  Slice blocks = builder.In(0, size);
  if (aside) {
    blocks = builder.NewScratch(size);
    builder.Copy(blocks, builder.In(0, size));
  }
  builder.Open();
  for (int i = 0; i < size; ++i) {
    const int peer = Modulo(request.rank + i, size);
    if (peer == request.rank && aside) continue;  // is where it belongs
    builder.Fold({{peer, builder.Out(request.rank)}}, {{request.rank, Part(blocks, peer, size)}});
  }
  return std::move(builder.Meet()).Build();
}

AlgorithmCost CostOfAllToAllSingleCopy(const CostQuery& query) {
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
