// Single-copy all-reduce: every rank folds one part of all inputs, where they lie, into all outputs, where they lie.
//
// Each input byte is read once and each output byte written once, with nothing in between: no other scheme moves less.
// Needs ranks that reach each other's memory, as those of one host do. Parts are folded in rank order by one rank: the
// same bits everywhere. In place costs nothing: part r of every buffer is touched by rank r alone.
//
//   all            tell each other where their buffers lie
//   every rank r   part r of every out = ((x0 op x1) op x2) op x3 of part r
//   all            meet
//
// Cost, n bytes: 2 rounds (both are barriers); (p-1)/p n bytes read from others by each rank, and as many stored.
// Stores into the others' outputs are not counted among the bytes that pass one after another. Every other algorithm
// copies as much out of scratch memory in place, which others can't know, and fetches all that its peers have just
// written. Any size; parts are equal where the pieces are a multiple of p. Source: XPMEM- and window-based
// shared-memory collectives, such as those of MPICH (POSIX release-gather) and Open MPI (XHC).
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

Plan BuildAllReduceSingleCopy(const PlanRequest& request) {
  PlanBuilder builder(request);
  if (request.size == 1) return std::move(builder.Copy(builder.Out(), builder.In())).Build();
  std::vector<RankSlice> sources;
  std::vector<RankSlice> targets;
  for (int i = 0; i < request.size; ++i) {
    const int rank = Modulo(request.rank + i, request.size);  // the own output first
    sources.push_back({i, Part(builder.In(), request.rank, request.size)});
    targets.push_back({rank, Part(builder.Out(), request.rank, request.size)});
  }
  return std::move(builder.Open().Fold(targets, sources).Meet()).Build();
}

AlgorithmCost CostOfAllReduceSingleCopy(const CostQuery& query) {
  if (query.size == 1) return {};
  const int64_t others = query.size - 1;
  const int64_t part = (int64_t{query.pieces} + query.size - 1) / query.size;
  return {.rounds = 2,
          .messages = 2 * others,
          .chunks = others * part,
          .critical = others * part,
          .reduced = others * part,
          .accesses = 2 * others};
}

}  // namespace cohort::comm
