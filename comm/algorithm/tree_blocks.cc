#include "cohort/comm/algorithm/tree_blocks.h"

#include <algorithm>

namespace cohort::comm {

TreeBlocks::TreeBlocks(PlanBuilder& builder, const PlanRequest& request, int radix, BufferId whole, const Slice& own)
    : request_(request),
      place_(PlaceInTree(request.size, request.rank, request.root, radix)),
      whole_(whole),
      own_(own),
      inner_(place_.parent >= 0 && place_.span > 1),
      scratch_(inner_ ? builder.NewScratch(place_.span) : PlanBuilder::Nothing()) {}

Slice TreeBlocks::Where(int relative, int count) const {
  if (root()) {
    const int block = (relative + request_.root) % request_.size;
    return {whole_, block * request_.pieces, count * request_.pieces};
  }
  return inner_ ? Parts(scratch_, relative - place_.relative, count, place_.span) : own_;
}

void TreeBlocks::ForEachRange(int relative, int count, const std::function<void(const Slice&)>& visit) const {
  const int size = request_.size;
  const int until_wrap = relative + request_.root < size ? size - request_.root - relative : size - relative;
  const int first = std::min(count, until_wrap);
  visit(Where(relative, first));
  if (first < count) visit(Where(relative + first, count - first));
}

AlgorithmCost TreeBlocksCost(const CostQuery& query, int radix) {
  const int64_t all = int64_t{query.size - 1} * query.pieces;
  return {.rounds = TreeDepth(query.size, radix),
          .messages = RootChildren(query.size, radix),
          .chunks = all,
          .critical = all,
          .reduced = 0};
}

}  // namespace cohort::comm
