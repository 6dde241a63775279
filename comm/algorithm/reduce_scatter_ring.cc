// Ring reduce-scatter: block j travels from rank j+1 once around to rank j, gaining every rank's contribution.
//
// Every rank talks to two neighbours only and moves the least data there is, in many rounds: for large blocks. Partial
// results alternate between two places, because one is being sent while the next is made.
//
//   every rank r   p-1 times: send a block to r+1, receive the next one from r-1 and combine it with the own
//
// Cost, blocks of n bytes: p-1 rounds; (p-1) n bytes out of and into each rank, which combines as many.
// Any size. Source: Patarasuk and Yuan (JPDC 2009).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterRing(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const Slice scratch = size > 2 ? builder.NewScratch(2) : PlanBuilder::Nothing();
  if (size == 1) builder.Copy(builder.Out(), builder.In());
  Slice sum = builder.In(Modulo(request.rank - 1, size));
  for (int step = 1; step < size; ++step) {
    builder.Send(Modulo(request.rank + 1, size), sum);
    const Slice target = step + 1 == size ? builder.Out() : Part(scratch, step % 2, 2);
    builder.RecvReduceFirst(Modulo(request.rank - 1, size), target, builder.In(Modulo(request.rank - step - 1, size)));
    sum = target;
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterRing(const CostQuery& query) {
  const int64_t steps = query.size - 1;
  const int64_t all = steps * query.pieces;
  return {.rounds = steps, .messages = steps, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
