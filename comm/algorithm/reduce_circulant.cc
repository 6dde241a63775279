// Circulant reduce: the circulant broadcast backwards. The block is cut into P pieces, whose sums come together at the
// root in the fewest rounds there are.
//
// In every round each rank sends one piece, to which nothing will be added any more, and combines another with what
// comes. For large blocks among any number of ranks, where a chain has too many rounds.
//
//   root 0, pieces a b c:   2 -> 0 (c), 3 -> 1 (c), 1 -> 3 (b)
//                           1 -> 0 (c), 2 -> 1 (a), 3 -> 2 (b)
//                           2 -> 0 (b), 3 -> 1 (a)
//                           1 -> 0 (a)
//
// Cost, n bytes in P pieces: P-1 + ceil(log2 p) rounds of one piece: that many pieces into the root, which combines as
// many; P out of every other rank.
// Any size and root. Source: Träff (arXiv 2407.18004); round_optimal.h.
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/round_optimal.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildReduceCirculant(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  const bool root = request.rank == request.root;
  if (size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  const BroadcastSchedule schedule(size, Modulo(request.rank - request.root, size), request.pieces);
  const auto rank_at = [&](int relative) { return Modulo(relative + request.root, size); };
  const auto piece_of = [&](const Slice& block, int32_t piece) { return Part(block, piece, request.pieces); };
  bool combines = root;
  for (int32_t i = 0; i < schedule.rounds() && !combines; ++i) combines = schedule.At(i).sent >= 0;
  const Slice sums = root ? builder.Out() : combines ? builder.NewScratch() : PlanBuilder::Nothing();
  std::vector<bool> begun(static_cast<size_t>(request.pieces));  // pieces whose sum is under way
  for (int32_t i = schedule.rounds(); i-- > 0;) {
    const BroadcastSchedule::Round round = schedule.At(i);
    if (round.received >= 0) {
      const bool own = !begun[static_cast<size_t>(round.received)];
      builder.Send(rank_at(round.from), piece_of(own ? builder.In() : sums, round.received));
    }
    if (round.sent >= 0) {
      const bool own = !begun[static_cast<size_t>(round.sent)];
      begun[static_cast<size_t>(round.sent)] = true;
      builder.RecvReduce(rank_at(round.to), piece_of(sums, round.sent),
                         piece_of(own ? builder.In() : sums, round.sent));
    }
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfReduceCirculant(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t rounds = int64_t{query.pieces} - 1 + CeilLog2(query.size);
  return {.rounds = rounds, .messages = rounds, .chunks = rounds, .critical = rounds, .reduced = rounds};
}

}  // namespace cohort::comm
