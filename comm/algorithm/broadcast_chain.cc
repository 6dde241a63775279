// Pipelined chain broadcast: the block is cut into P pieces that travel from rank to rank, one behind the other.
//
// Every rank sends each piece once, so with enough pieces the time is that of one transfer of the block plus a delay
// for each rank of the chain: for large blocks.
//
//   root 0:   0 -> 1 -> 2 -> 3, piece by piece
//
// Cost, n bytes: p-1 rounds (hops); n bytes out of each rank; time of P + p - 2 pieces.
// Any size and root. Source: textbook (pipeline).
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBroadcastChain(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int place = Modulo(request.rank - request.root, request.size);
  const bool root = place == 0;
  const Slice from = root ? builder.In() : builder.Out();
  for (int piece = 0; piece < request.pieces; ++piece) {
    const Slice slice = Part(from, piece, request.pieces);
    if (!root) builder.Recv(Modulo(request.rank - 1, request.size), slice);
    if (place + 1 < request.size) builder.Send(Modulo(request.rank + 1, request.size), slice);
  }
  if (root) builder.Copy(builder.Out(), builder.In());
  return std::move(builder).Build();
}

AlgorithmCost CostOfBroadcastChain(const CostQuery& query) {
  if (query.size == 1) return {};
  return {.rounds = query.size - 1,
          .messages = query.pieces,
          .chunks = query.pieces,
          .critical = int64_t{query.pieces} + query.size - 2,
          .reduced = 0};
}

}  // namespace cohort::comm
