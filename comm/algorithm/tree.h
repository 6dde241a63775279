// K-nomial trees: rank arithmetic shared by the tree algorithms.
//
// Ranks are counted from the root (v = rank - root modulo p). The parent of v is v with its lowest digit that is not
// zero, in base K, set to zero; so v's subtree is the range [v, v + span) and its children are v + j * m for the powers
// m of K below that digit and j in [1, K).
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::comm {

struct TreeChild {
  int rank = 0;      // group rank
  int relative = 0;  // counted from the root
  int span = 0;      // ranks in its subtree
};

struct TreePlace {
  int relative = 0;
  int span = 0;                     // ranks in this rank's subtree, itself included
  int parent = -1;                  // group rank; -1 at the root
  std::vector<TreeChild> children;  // the largest subtree first
};

TreePlace PlaceInTree(int size, int rank, int root, int radix);

// Children of the root; messages from the root to the deepest rank.
int64_t RootChildren(int size, int radix);
int64_t TreeDepth(int size, int radix);

}  // namespace cohort::comm
