// The hash of a sequence of words, word by word: ids of groups, and values that members' signatures compare.
#pragma once

#include <cstdint>

namespace cohort::comm {

inline uint64_t MixHash(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15u;
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

}  // namespace cohort::comm
