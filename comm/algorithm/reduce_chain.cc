// Pipelined chain reduce: partial results travel from rank to rank towards the root in P pieces, one behind the other.
//
// Every rank sends each piece once and combines it once, so with enough pieces the time is that of one transfer of the
// block plus a delay for each rank of the chain: for large blocks.
//
//   root 0:   3 -> 2 -> 1 -> 0, piece by piece        out = x0 op (x1 op (x2 op x3))
//
// Cost, n bytes: p-1 rounds (hops); n bytes into each rank, which combines as many; time of P + p - 2 pieces.
// Any size and root. Source: textbook (pipeline).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceChain(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int place = Modulo(request.rank - request.root, request.size);
  const bool root = place == 0;
  const bool last = place + 1 == request.size;
  Slice sum = builder.In();
  if (root) {
    sum = builder.Out();
  } else if (!last) {
    sum = builder.NewScratch();
  }
  if (root && last) builder.Copy(builder.Out(), builder.In());
  for (int piece = 0; piece < request.pieces; ++piece) {
    const Slice slice = Part(sum, piece, request.pieces);
    const int above = Modulo(request.rank + 1, request.size);
    if (!last) builder.RecvReduce(above, slice, Part(builder.In(), piece, request.pieces));
    if (!root) builder.Send(Modulo(request.rank - 1, request.size), slice);
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceChain(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t time = int64_t{query.pieces} + query.size - 2;
  return {
      .rounds = query.size - 1, .messages = query.pieces, .chunks = query.pieces, .critical = time, .reduced = time};
}

}  // namespace cohort::comm
