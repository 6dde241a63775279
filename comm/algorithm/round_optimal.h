// The schedule of a broadcast of many blocks in the fewest rounds that are possible: n-1 + ceil(log2 p) for n
// blocks among p ranks, each of which sends at most one block and receives at most one in a round. Read backwards, it
// is the schedule of a reduction.
//
// All rounds use the circulant pattern: with q = ceil(log2 p), skips s(q) = p, s(k) = ceil(s(k+1) / 2), rank r sends to
// r + s(k) and receives from r - s(k) in the rounds k, k + q, k + 2q, ... Which block comes in round k of the first q,
// and q blocks further on in every later q rounds, each rank finds by itself in O(q) steps: r is a sum of different
// skips, rank 0's block k takes the way of the skip k first, and a search through those ways, from the nearest rank on,
// gives for each k the latest block that the sender can have and r has not yet.
//
// Source: Träff, "Optimal Broadcast Schedules in Logarithmic Time with Applications to Broadcast, All-Broadcast,
// Reduction and All-Reduction" (arXiv 2407.18004, 2024); Träff and Ripke (2009) for the pattern.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::comm {

class BroadcastSchedule {
 public:
  // For the rank `relative` places after the root, at least two ranks and one block.
  BroadcastSchedule(int size, int relative, int32_t blocks);

  // n-1 + ceil(log2 p).
  int32_t rounds() const { return rounds_; }

  // The rank's part in a round, from 0 on. Ranks are counted from the root; a block of -1 is none.
  struct Round {
    int to = 0;
    int32_t sent = -1;
    int from = 0;
    int32_t received = -1;
  };
  Round At(int32_t round) const;

 private:
  int32_t BlockIn(int32_t entry, int32_t phase) const;

  const int size_;
  const int relative_;
  const int32_t blocks_;
  std::vector<int> skips_;
  // Per k: the block, plus q a phase of q rounds; negative ones do not exist yet.
  std::vector<int32_t> received_;
  std::vector<int32_t> sent_;
  int32_t rounds_;
  int32_t skipped_;  // rounds left out at the beginning, so that the last one ends a phase
};

}  // namespace cohort::comm
