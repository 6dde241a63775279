// Blocks on their way through a k-nomial tree: where a rank of a tree gather or scatter keeps the blocks of its
// subtree. A subtree is a range of ranks counted from the root; where that range wraps past the last rank it travels as
// two messages, because it lies in two places of the root's buffer.
#pragma once

#include <functional>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/algorithm/tree.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

class TreeBlocks {
 public:
  // `whole` is the root's buffer of all blocks, `own` every other rank's buffer of its block. Ranks between root and
  // leaves get scratch memory for their subtree.
  TreeBlocks(PlanBuilder& builder, const PlanRequest& request, int radix, BufferId whole, const Slice& own);

  const TreePlace& place() const { return place_; }
  bool root() const { return place_.parent < 0; }
  // True where the own block has to be copied between `own` and Own(): at the root and where there is scratch memory.
  bool apart() const { return root() || inner_; }
  // The own block among those of the subtree.
  Slice Own() const { return Where(place_.relative, 1); }
  // Visits the blocks of ranks [relative, relative + count), counted from the root, as one or two slices.
  void ForEachRange(int relative, int count, const std::function<void(const Slice&)>& visit) const;

 private:
  Slice Where(int relative, int count) const;  // a range that does not wrap

  const PlanRequest request_;
  const TreePlace place_;
  const BufferId whole_;
  const Slice own_;
  const bool inner_;
  const Slice scratch_;
};

// The cost of a tree gather or scatter: the depth of the tree in rounds, all other ranks' blocks at the root.
AlgorithmCost TreeBlocksCost(const CostQuery& query, int radix);

}  // namespace cohort::comm
