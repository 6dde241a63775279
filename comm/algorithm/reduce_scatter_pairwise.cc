// Pairwise reduce-scatter: in step i every rank sends the block of the rank i places on, and combines what the rank i
// places back sends.
//
// One partner at a time in each direction, as the ring has it, but every contribution travels straight to its block's
// owner: no scratch memory and nothing forwarded. The association is the owner's rank downwards, the same in every run.
//
//   step 1: r -> r+1: block r+1    step 2: r -> r+2: block r+2    step 3: r -> r+3: block r+3
//
// Cost, blocks of n bytes: p-1 rounds; (p-1) n bytes out of and into each rank, which combines as many.
// Any size. Source: Thakur, Rabenseifner and Gropp (IJHPCA 2005), pairwise exchange.
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterPairwise(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  Slice sum = builder.In(request.rank);
  for (int step = 1; step < size; ++step) {
    const int target = Modulo(request.rank + step, size);
    builder.Send(target, builder.In(target));
    builder.RecvReduce(Modulo(request.rank - step, size), builder.Out(), sum);
    sum = builder.Out();
  }
  if (size == 1) builder.Copy(builder.Out(), sum);
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterPairwise(const CostQuery& query) {
  const int64_t steps = query.size - 1;
  const int64_t all = steps * query.pieces;
  return {.rounds = steps, .messages = steps, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
