// Ring all-reduce: a reduce-scatter and an all-gather around a ring, one part of the block for each rank.
//
// Part j starts at rank j+1 and travels once around to rank j, gaining every rank's contribution, and then around again
// as the result. Every rank talks to two neighbours only, and moves the least data there is, in many rounds: for large
// blocks. The result of a part is made by one rank, so all get the same bits.
//
//   every rank r   p-1 times: send a part to r+1, receive the next one from r-1 and combine it with the own
//                  p-1 times: send a part to r+1, receive the next one from r-1
//
// Cost, n bytes: 2 (p-1) rounds; 2 (p-1)/p n bytes out of and into each rank, half of them combined.
// Any size; parts are equal where the pieces are a multiple of p. Source: Patarasuk and Yuan (JPDC 2009).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceRing(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const int right = Modulo(request.rank + 1, size);
  const int left = Modulo(request.rank - 1, size);
  const auto in = [&](int part) { return Part(builder.In(), Modulo(part, size), size); };
  const auto out = [&](int part) { return Part(builder.Out(), Modulo(part, size), size); };
  if (size == 1) builder.Copy(builder.Out(), builder.In());
  for (int step = 1; step < size; ++step) {
    const int part = request.rank - step;
    builder.Send(right, step == 1 ? in(part) : out(part));
    builder.RecvReduceFirst(left, out(part - 1), in(part - 1));
  }
  for (int step = 1; step < size; ++step) {
    const int part = request.rank - step;
    builder.Send(right, out(part + 1));
    builder.Recv(left, out(part));
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceRing(const CostQuery& query) {
  const int64_t steps = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2 * steps,
          .messages = 2 * steps,
          .chunks = 2 * steps * part,
          .critical = 2 * steps * part,
          .reduced = steps * part};
}

}  // namespace cohort::comm
