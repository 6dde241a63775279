// Plans of some ranks inside the plan of all: an algorithm is asked for its plan among a few ranks, and its steps are
// taken over with other ranks, buffers and chunks. A publish becomes a message to each of those ranks.
#pragma once

#include <functional>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

// The ranks that take part, the caller among them.
struct Team {
  int size = 1;
  int rank = 0;   // the caller's number in the team
  int root = -1;  // likewise; of kinds that have one
  std::function<int(int)> rank_of;
};

// Says where a block of one of the team's buffers lies: slices of the caller's plan, in order. They have equally many
// chunks on every rank that has the block.
using BlockAt = std::function<std::vector<Slice>(int block)>;

class Embedding {
 public:
  // `request` is that of the plan that is being built.
  Embedding(PlanBuilder& builder, const PlanRequest& request) : builder_(builder), request_(request) {}

  // For kinds that move one block, which is a range of chunks within a block of the plan, or a range of whole blocks:
  // `in` and `out` on the ranks that have such a buffer. They may be the same memory.
  void OnRange(const AlgorithmInfo& algorithm, const Team& team, const Slice& in, const Slice& out);

  // For kinds that move a block for each rank. With `joined`, what lies together goes as one message, and must lie
  // together on all ranks; else every slice is a message. Variable-count forms allow blocks of unequal length.
  void OnBlocks(const AlgorithmInfo& algorithm, const Team& team, const BlockAt& in, const BlockAt& out, bool joined);

 private:
  using Slices = std::function<std::vector<Slice>(const Slice&)>;

  void TakeOver(const Plan& plan, const Team& team, const Slices& at);
  void TakeOver(const Step& step, const Team& team, const Slices& at);
  bool SameMemory(const Slice& a, const Slice& b) const { return a.chunks > 0 && builder_.Aliased(a, b); }

  PlanBuilder& builder_;
  const PlanRequest request_;
};

}  // namespace cohort::comm
