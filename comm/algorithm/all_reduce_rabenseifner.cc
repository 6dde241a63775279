// Rabenseifner's all-reduce: reduce-scatter by recursive halving, all-gather by recursive doubling.
//
// Least volume in twice the fewest rounds where p is a power of two, and always one message a round where the circulant
// pattern has two. Where p is no power of two, the even ones of the first 2 (p - 2^L) ranks give their block to their
// neighbour before and get the result after. Each part is made by one rank, so all get the same bits.
//
//   0 <-> 2, 1 <-> 3: half the block    0 <-> 1, 2 <-> 3: a quarter    and the same way back
//
// Cost, n bytes, L = floor(log2 p): 2 L rounds; 2 (1 - 2^-L) n bytes out of and into each rank, half of them combined.
// If p is no power of two, 2 L + 2 rounds and n bytes more.
// Any size; parts are equal where the pieces are a multiple of 2^L. Source: Rabenseifner (ICCS 2004); Thakur,
// Rabenseifner, Gropp (IJHPCA 2005).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceRabenseifner(const PlanRequest& request) {
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
  Slice have = builder.In();  // where the partial results are
  if (rank < 2 * extra) {
    builder.RecvReduceFirst(rank - 1, builder.Out(), have);
    have = builder.Out();
  }
  const int place = rank < 2 * extra ? rank / 2 : rank - extra;
  const auto rank_at = [&](int other) { return other < extra ? 2 * other + 1 : other + extra; };
  const auto parts = [&](const Slice& whole, int first, int count) { return Parts(whole, first, count, power); };
  for (int distance = power / 2; distance >= 1; distance /= 2) {
    const int other = place ^ distance;
    builder.Send(rank_at(other), parts(have, other / distance * distance, distance));
    const int first = place / distance * distance;
    const Slice target = parts(builder.Out(), first, distance);
    other < place ? builder.RecvReduceFirst(rank_at(other), target, parts(have, first, distance))
                  : builder.RecvReduce(rank_at(other), target, parts(have, first, distance));
    have = builder.Out();
  }
  for (int distance = 1; distance < power; distance *= 2) {
    const int other = place ^ distance;
    builder.Send(rank_at(other), parts(have, place / distance * distance, distance));
    builder.Recv(rank_at(other), parts(have, other / distance * distance, distance));
  }
  if (rank < 2 * extra) builder.Send(rank - 1, builder.Out());
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceRabenseifner(const CostQuery& query) {
  const int64_t power = FloorPowerOfTwo(query.size);
  const int64_t steps = CeilLog2(static_cast<int>(power));
  const int64_t extra = query.size > power ? 1 : 0;
  const int64_t part = (query.pieces + power - 1) / power;
  const int64_t parts = (power - 1) * part;
  return {.rounds = 2 * (steps + extra),
          .messages = 2 * steps + extra,
          .chunks = 2 * parts + extra * query.pieces,
          .critical = 2 * parts + 2 * extra * query.pieces,
          .reduced = parts + extra * query.pieces};
}

}  // namespace cohort::comm
