// Pairwise all-to-all: in step i the ranks r and s with r + s = i (modulo p) exchange their blocks.
//
// One partner at a time, so no rank is sent to by several at once: for large blocks between hosts. Both of a pair meet
// in the same step, so in place one scratch block is enough: the own block is under way before the other takes its
// place.
//
//   step 0: 1 <-> 3    step 1: 0 <-> 1, 2 <-> 3    step 2: 0 <-> 2    step 3: 0 <-> 3, 1 <-> 2
//
// Cost, blocks of n bytes: p rounds, 1 for p = 2; (p-1) n bytes out of and into each rank.
// Any size. Source: textbook (pairwise exchange, one-factorisation of the complete graph).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllToAllPairwise(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const bool aside = size > 1 && builder.Aliased(builder.In(), builder.Out());
  const bool unequal = HasUnequalBlocks(request.kind);
  const Slice shared = aside && !unequal ? builder.NewScratch() : PlanBuilder::Nothing();
  builder.Copy(builder.Out(request.rank), builder.In(request.rank));
  for (int step = 0; step < size; ++step) {
    const int peer = Modulo(step - request.rank, size);
    if (peer == request.rank) continue;
    builder.Send(peer, builder.In(peer));
    const Slice scratch = aside && unequal ? builder.NewScratchLike(builder.Out(peer)) : shared;
    builder.Recv(peer, aside ? scratch : builder.Out(peer));
    if (aside) builder.Copy(builder.Out(peer), scratch);
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllToAllPairwise(const CostQuery& query) {
  const int64_t others = query.size - 1;
  const int64_t steps = query.size > 2 ? query.size : others;  // in each step one or two ranks may have no partner
  return {.rounds = steps,
          .messages = others,
          .chunks = others * query.pieces,
          .critical = steps * query.pieces,
          .reduced = 0,
          .total = query.size * others * query.pieces};
}

}  // namespace cohort::comm
