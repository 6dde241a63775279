// Rank arithmetic and step sequences that several algorithms share.
#pragma once

#include "cohort/comm/plan/plan_builder.h"

namespace cohort::comm {

// The smallest k with 2^k >= n, for n >= 1; the largest power of two <= n.
constexpr int CeilLog2(int n) {
  int k = 0;
  while ((int64_t{1} << k) < n) ++k;
  return k;
}
constexpr int FloorPowerOfTwo(int n) {
  int power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

// value modulo size, never negative.
constexpr int Modulo(int value, int size) { return ((value % size) + size) % size; }

// result = x0 op x1 op ... op x(size-1), associated from the left, where x(rank) is `own` and the others arrive as one
// message from each rank, in rank order. `own` and `result` may be the same memory, but no send of this rank may
// still read it, unless the plan folds once. With `published` the messages are publishes.
void ReduceInRankOrder(PlanBuilder& builder, const PlanRequest& request, const Slice& own, const Slice& result,
                       bool published);

}  // namespace cohort::comm
