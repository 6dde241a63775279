// Circulant broadcast: the block is cut into P pieces, which spread in the fewest rounds there are.
//
// In every round each rank sends one piece and receives another, so that pieces follow one another as in a chain, but
// the first one is everywhere after ceil(log2 p) rounds instead of p-1. For large blocks among any number of ranks;
// with one piece it is a binomial tree's equal.
//
//   root 0, pieces a b c:   0 -> 1 (a)
//                           0 -> 2 (b), 1 -> 3 (a)
//                           0 -> 1 (c), 1 -> 2 (a), 2 -> 3 (b)
//                           0 -> 2 (c), 1 -> 3 (c), 3 -> 1 (b)
//
// Cost, n bytes in P pieces: P-1 + ceil(log2 p) rounds of one piece, which each rank sends and receives at once: that
// many pieces out of the root, P into every other rank.
// Any size and root. Source: Träff (arXiv 2407.18004); round_optimal.h.
#include <utility>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/round_optimal.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildBroadcastCirculant(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const bool root = request.rank == request.root;
  if (size > 1) {
    const BroadcastSchedule schedule(size, Modulo(request.rank - request.root, size), request.pieces);
    const auto rank_at = [&](int relative) { return Modulo(relative + request.root, size); };
    const Slice from = root ? builder.In() : builder.Out();
    for (int32_t i = 0; i < schedule.rounds(); ++i) {
      const BroadcastSchedule::Round round = schedule.At(i);
      if (round.sent >= 0) builder.Send(rank_at(round.to), Part(from, round.sent, request.pieces));
      if (round.received >= 0) {
        builder.Recv(rank_at(round.from), Part(builder.Out(), round.received, request.pieces));
      }
    }
  }
  if (root) builder.Copy(builder.Out(), builder.In());
  return std::move(builder).Build();
}

AlgorithmCost CostOfBroadcastCirculant(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t rounds = int64_t{query.pieces} - 1 + CeilLog2(query.size);
  return {.rounds = rounds, .messages = rounds, .chunks = rounds, .critical = rounds, .reduced = 0};
}

}  // namespace cohort::comm
