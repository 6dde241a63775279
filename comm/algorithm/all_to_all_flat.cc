// Flat all-to-all: every rank sends all its blocks at once and then takes what comes.
//
// One message time and the least volume; all messages are under way together, so it is for small blocks or few ranks.
// In place the blocks arrive in scratch memory, because their places are sent from.
//
//   every rank     send block j to rank j; out block j from rank j; own block copied
//
// Cost, blocks of n bytes: 1 round; (p-1) n bytes out of and into every rank.
// Any size. Source: textbook (linear all-to-all).
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllToAllFlat(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  for (int i = 1; i < size; ++i) {
    const int peer = Modulo(request.rank + i, size);
    builder.Send(peer, builder.In(peer));
  }
  builder.Copy(builder.Out(request.rank), builder.In(request.rank));
  const bool aside = builder.Aliased(builder.In(), builder.Out());
  std::vector<std::pair<Slice, Slice>> arrived;  // where it belongs, where it came
  for (int i = 1; i < size; ++i) {
    const int peer = Modulo(request.rank - i, size);
    const Slice place = builder.Out(peer);
    arrived.emplace_back(place, aside ? builder.NewScratchLike(place) : place);
    builder.Recv(peer, arrived.back().second);
  }
  for (const auto& [place, came] : arrived) builder.Copy(place, came);
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllToAllFlat(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = 1, .messages = query.size - 1, .chunks = all, .critical = all, .reduced = 0};
}

}  // namespace cohort::comm
