// Bruck all-to-all: blocks travel by the binary digits of their distance.
//
// Block j places to the right moves in the rounds k where bit k of j is set, together with all others of that round:
// few messages and about (log2 p) / 2 times the volume, for very small blocks. Blocks are packed for each round and lie
// in scratch memory until their last.
//
//   every rank r   round 0: send the blocks for r+1 and r+3 to r+1; round 1: send what is for r+2 and r+3 to r+2
//
// Cost, blocks of n bytes: ceil(log2 p) rounds; n bytes times the number of set bits in 1..p-1, out of and into each
// rank.
// Any size. Source: Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE TPDS 1997).
#include <utility>
#include <vector>

#include "cohort/comm/algorithm/pattern.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {
namespace {

// How many of 1..size-1 have the bit.
int BlocksWithBit(int size, int bit) {
  int blocks = 0;
  for (int j = 1; j < size; ++j) blocks += (j & bit) != 0 ? 1 : 0;
  return blocks;
}

}  // namespace

Plan BuildAllToAllBruck(const PlanRequest& request) {
  PlanBuilder builder(request);
  const int size = request.size;
  // The place of the block that has j places to go, or has gone them.
  std::vector<Slice> where;
  for (int j = 0; j < size; ++j) where.push_back(builder.In(Modulo(request.rank + j, size)));
  for (int bit = 1; bit < size; bit *= 2) {
    const int blocks = BlocksWithBit(size, bit);
    const Slice packed = builder.NewScratch(blocks);
    const Slice received = builder.NewScratch(blocks);
    int next = 0;
    for (int j = 1; j < size; ++j) {
      if ((j & bit) == 0) continue;
      builder.Copy(Part(packed, next, blocks), where[static_cast<size_t>(j)]);
      where[static_cast<size_t>(j)] = Part(received, next, blocks);
      ++next;
    }
    builder.Send(Modulo(request.rank + bit, size), packed);
    builder.Recv(Modulo(request.rank - bit, size), received);
  }
  for (int j = 0; j < size; ++j) {
    builder.Copy(builder.Out(Modulo(request.rank - j, size)), where[static_cast<size_t>(j)]);
  }
  return std::move(builder).Build();
}

AlgorithmCost CostOfAllToAllBruck(const CostQuery& query) {
  int64_t blocks = 0;
  for (int bit = 1; bit < query.size; bit *= 2) blocks += BlocksWithBit(query.size, bit);
  const int64_t rounds = CeilLog2(query.size);
  // Packing and unpacking read and write every block once more: counted like a second move.
  return {.rounds = rounds,
          .messages = rounds,
          .chunks = blocks * query.pieces,
          .critical = 2 * blocks * query.pieces,
          .reduced = 0,
          .total = query.size * blocks * query.pieces};
}

}  // namespace cohort::comm
