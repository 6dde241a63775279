// Recursive doubling all-reduce: in step k ranks at distance 2^k exchange their partial results.
//
// The fewest rounds there are, with the whole block in each: for small blocks. Where the size is no power of two, the
// even ones of the first 2 (p - 2^L) ranks give their block to their neighbour before and get the result after. The
// lower ranks' part is always the left operand, so all ranks get the same bits.
//
//   0 <-> 1, 2 <-> 3    0 <-> 2, 1 <-> 3        out = (x0 op x1) op (x2 op x3)
//
// Cost, n bytes, L = floor(log2 p): L rounds; where p is no power of two L + 1, or L + 2 where more than half of the
// 2^L have such a neighbour. L n bytes out of and into each rank, (L + 1) n where p is no power of two, and as many
// combined.
// Any size. Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005).
#include <algorithm>
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceRecursiveDoubling(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int rank = request.rank;
  const int power = FloorPowerOfTwo(request.size);
  const int extra = request.size - power;
  if (request.size == 1) {
    builder.Copy(builder.Out(), builder.In());
    return std::move(builder).Build();
  }
  if (rank < 2 * extra && rank % 2 == 0) {
    builder.Send(rank + 1, builder.In()).Recv(rank + 1, builder.Out());
    return std::move(builder).Build();
  }
  // Partial results alternate between two places, because one is being sent while the next is made.
  const Slice scratch = builder.NewScratch(2);
  int writes = 0;
  const auto next = [&] { return Part(scratch, writes++ % 2, 2); };
  Slice sum = builder.In();
  if (rank < 2 * extra) {
    const Slice target = next();
    builder.RecvReduceFirst(rank - 1, target, sum);
    sum = target;
  }
  const int place = rank < 2 * extra ? rank / 2 : rank - extra;  // among those that exchange
  for (int distance = 1; distance < power; distance *= 2) {
    const int other = place ^ distance;
    const int peer = other < extra ? 2 * other + 1 : other + extra;
    builder.Send(peer, sum);
    // The result goes where it belongs, unless that is what this very step sends.
    const bool final_place = 2 * distance == power && !builder.Aliased(sum, builder.Out());
    const Slice target = final_place ? builder.Out() : next();
    other < place ? builder.RecvReduceFirst(peer, target, sum) : builder.RecvReduce(peer, target, sum);
    sum = target;
  }
  if (sum.buffer != BufferId::kOut) {
    builder.Copy(builder.Out(), sum);
    sum = builder.Out();
  }
  if (rank < 2 * extra) builder.Send(rank - 1, sum);
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceRecursiveDoubling(const CostQuery& query) {
  const int power = FloorPowerOfTwo(query.size);
  const int steps = CeilLog2(power);
  const int extra = query.size > power ? 1 : 0;
  // A chain may begin with a neighbour's block, or end with a neighbour's result, or both.
  const int both = extra == 0 ? 0 : CeilLog2(query.size - power) + 2;
  return {.rounds = std::max(steps + extra, both),
          .messages = steps + extra,
          .chunks = int64_t{steps + extra} * query.pieces,
          .critical = int64_t{steps + 2 * extra} * query.pieces,
          .reduced = int64_t{steps + extra} * query.pieces};
}

}  // namespace cohort::comm
