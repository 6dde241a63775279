// Circulant all-reduce: the circulant reduce-scatter of one part for each rank, and the circulant all-gather.
//
// Twice the fewest rounds, with the least volume, for every size: Rabenseifner's algorithm without its detour for sizes
// that are no power of two. For middling and large blocks. Works in the output buffer and needs no scratch memory. The
// result of a part is made by one rank, so all get the same bits.
//
//   round 0: r -> r+2: parts r+2, r+3    round 1: r -> r+1: part r+1 (of two ranks)
//   round 2: r -> r-1: part r            round 3: r -> r-2: parts r, r+1
//
// Cost, n bytes: 2 ceil(log2 p) rounds; 2 (p-1)/p n bytes out of and into each rank, half of them combined.
// Any size; parts are equal where the pieces are a multiple of p. Source: Träff, optimal non-pipelined reduce-scatter
// and all-reduce (2024).
#include <utility>

#include "cohort/comm/algorithm/circulant.h"
#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceCirculant(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  if (size == 1) {
    builder.Copy(builder.Out(), builder.In());
    return std::move(builder).Build();
  }
  const PartsAt in = [&](int part, int, int count) { return Parts(builder.In(), part, count, size); };
  const PartsAt out = [&](int part, int, int count) { return Parts(builder.Out(), part, count, size); };
  const Slice own = Part(builder.Out(), request.rank, size);
  CirculantReduceScatter(builder, request, in, out, own);
  CirculantAllGather(builder, request, own, out);
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllReduceCirculant(const CostQuery& query) {
  const int64_t rounds = CeilLog2(query.size);
  const int64_t others = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2 * rounds,
          .messages = 2 * rounds,
          .chunks = 2 * others * part,
          .critical = 2 * others * part,
          .reduced = others * part};
}

}  // namespace cohort::comm
