#include "cohort/comm/algorithm/pattern.h"

#include <vector>

namespace cohort::comm {

namespace {

// Does what ReduceInRankOrder does by one fold of all operands.
void FoldInRankOrder(PlanBuilder& builder, const PlanRequest& request, const Slice& own, const Slice& result,
                     bool published) {
  std::vector<RankSlice> operands;
  for (int peer = 0; peer < request.size; ++peer) {
    const Slice slice = peer == request.rank ? own : builder.NewScratchLike(own);
    operands.push_back({request.rank, slice});
    if (peer == request.rank) continue;
    published ? builder.RecvPublished(peer, slice) : builder.Recv(peer, slice);
  }
  builder.Fold({{request.rank, result}}, operands);
}

}  // namespace

void ReduceInRankOrder(PlanBuilder& builder, const PlanRequest& request, const Slice& own, const Slice& result,
                       bool published) {
  if (request.fold_once) return FoldInRankOrder(builder, request, own, result, published);
  const int rank = request.rank;
  // Until `own` has been used, nothing may be gathered where it lies.
  const bool aside = rank >= 2 && builder.Aliased(own, result);
  const Slice early = aside ? builder.NewScratchLike(own) : result;
  const auto receive = [&](int peer, const Slice& dst) {
    published ? builder.RecvPublished(peer, dst) : builder.Recv(peer, dst);
  };
  const auto receive_reduce = [&](int peer, const Slice& dst, const Slice& src) {
    published ? builder.RecvReducePublished(peer, dst, src) : builder.RecvReduce(peer, dst, src);
  };
  Slice sum = own;
  int next = 1;  // the first contribution that `sum` does not hold yet
  if (rank == 1) {
    published ? builder.RecvReducePublishedFirst(0, result, own) : builder.RecvReduceFirst(0, result, own);
    sum = result;
    next = 2;
  } else if (rank >= 2) {
    receive(0, early);
    sum = early;
  }
  for (int peer = next; peer < request.size; ++peer) {
    const Slice& target = peer < rank ? early : result;
    if (peer == rank) {
      builder.Reduce(target, sum, own);
    } else {
      receive_reduce(peer, target, sum);
    }
    sum = target;
  }
  if (request.size == 1) builder.Copy(result, own);
}

}  // namespace cohort::comm
