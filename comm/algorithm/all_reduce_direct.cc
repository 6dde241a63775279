// Direct all-reduce: every rank combines one part of the block for all, and publishes it.
//
// A reduce-scatter by sending each part straight to its owner, and an all-gather by reading the owners' results: two
// message times whatever the size, and the least volume. In shared memory it beats the ring from middling blocks on;
// between hosts all talk to all at once. Parts are combined in rank order by one rank: the same bits everywhere.
//
//   every rank r   send part j to rank j; out part r = ((x0 op x1) op x2) op x3 of part r
//                  publish out part r; read the others' parts
//
// Cost, n bytes: 2 rounds; 2 (p-1)/p n bytes into each rank, half of them combined.
// Any size; parts are equal where the pieces are a multiple of p. Source: direct reduce-scatter + all-gather, as in
// Gloo's and Open MPI's shared-memory paths.
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceDirect(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const auto in = [&](int part) { return Part(builder.In(), part, size); };
  const auto out = [&](int part) { return Part(builder.Out(), part, size); };
  for (int i = 1; i < size; ++i) {
    const int peer = Modulo(request.rank + i, size);
    builder.Send(peer, in(peer));
  }
  ReduceInRankOrder(builder, request, in(request.rank), out(request.rank), false);
  if (size > 1) builder.Publish(out(request.rank));
  for (int i = 1; i < size; ++i) {
    const int peer = Modulo(request.rank + i, size);
    builder.RecvPublished(peer, out(peer));
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceDirect(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t others = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2,
          .messages = 2 * others,
          .chunks = 2 * others * part,
          .critical = 2 * others * part,
          .reduced = others * part};
}

}  // namespace cohort::comm
