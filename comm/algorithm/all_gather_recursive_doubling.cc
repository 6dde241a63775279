// Recursive doubling all-gather: in step k ranks at distance 2^k exchange all that they have.
//
// The fewest rounds and the least volume, and every exchange is one contiguous message: for powers of two the choice
// for small and middling blocks.
//
//   0 <-> 1, 2 <-> 3 (one block)    0 <-> 2, 1 <-> 3 (two blocks)
//
// Cost, blocks of n bytes: log2 p rounds; (p-1) n bytes out of and into each rank.
// Powers of two. Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllGatherRecursiveDoubling(const PlanRequest& request) {
  PlanBuilder builder(request);
  for (int distance = 1; distance < request.size; distance *= 2) {
    const int peer = request.rank ^ distance;
    const int own = request.rank / distance * distance;
    builder.Send(peer, distance == 1 ? builder.In() : builder.Out(own, distance));
    if (distance == 1) builder.Copy(builder.Out(request.rank), builder.In());
    builder.Recv(peer, builder.Out(own ^ distance, distance));
  }
  if (request.size == 1) builder.Copy(builder.Out(), builder.In());
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllGatherRecursiveDoubling(const CostQuery& query) {
  const int64_t steps = CeilLog2(query.size);
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = steps, .messages = steps, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
