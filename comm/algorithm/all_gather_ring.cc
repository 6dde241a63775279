// Ring all-gather: every block travels once around the ring.
//
// Every rank talks to two neighbours only and moves the least data there is, in many rounds: for large blocks.
//
//   every rank r   p-1 times: send the newest block to r+1, receive the next one from r-1
//
// Cost, blocks of n bytes: p-1 rounds; (p-1) n bytes out of and into each rank.
// Any size. Source: textbook (ring).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllGatherRing(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  for (int step = 1; step < size; ++step) {
    const int block = Modulo(request.rank - step, size);
    builder.Send(Modulo(request.rank + 1, size), step == 1 ? builder.In() : builder.Out(Modulo(block + 1, size)));
    if (step == 1) builder.Copy(builder.Out(request.rank), builder.In());
    builder.Recv(Modulo(request.rank - 1, size), builder.Out(block));
  }
  if (size == 1) builder.Copy(builder.Out(), builder.In());
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllGatherRing(const CostQuery& query) {
  const int64_t steps = query.size - 1;
  const int64_t all = steps * query.pieces;
  return {.rounds = steps, .messages = steps, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
