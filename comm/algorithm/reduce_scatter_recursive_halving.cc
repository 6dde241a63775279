// Recursive halving reduce-scatter: ranks at half the distance of the round before exchange, each the half of its
// blocks that is the other's, and combine what they keep with what they get.
//
// The fewest rounds and the least volume, as the circulant pattern, but a round has one partner in both directions: two
// ranks that share a CPU or a connection wait for each other once, not for two others. For powers of two.
//
//   0 <-> 2, 1 <-> 3 (two blocks)    0 <-> 1, 2 <-> 3 (one block)
//
// Cost, blocks of n bytes: log2 p rounds; (p-1) n bytes out of and into each rank, which combines as many.
// Powers of two. Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceScatterRecursiveHalving(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int rank = request.rank;
  const int half = request.size / 2;
  if (request.size == 1) {
    builder.Copy(builder.Out(), builder.In());
    return std::move(builder).Build();
  }
  const int kept = rank / half * half;  // the first block that this rank keeps in round 0
  const Slice scratch = request.size > 2 ? builder.NewScratch(half) : PlanBuilder::Nothing();
  const auto partial = [&](int first, int count) {
    return count == 1 && first == rank ? builder.Out() : Parts(scratch, first - kept, count, half);
  };
  for (int distance = half; distance >= 1; distance /= 2) {
    const int peer = rank ^ distance;
    const int own = rank / distance * distance;
    const int other = own ^ distance;
    const bool first = distance == half;
    builder.Send(peer, first ? builder.In(other, distance) : Parts(scratch, other - kept, distance, half));
    const Slice have = first ? builder.In(own, distance) : Parts(scratch, own - kept, distance, half);
    peer < rank ? builder.RecvReduceFirst(peer, partial(own, distance), have)
                : builder.RecvReduce(peer, partial(own, distance), have);
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceScatterRecursiveHalving(const CostQuery& query) {
  const int64_t steps = CeilLog2(query.size);
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = steps, .messages = steps, .chunks = all, .critical = all, .reduced = all};
}

}  // namespace cohort::comm
