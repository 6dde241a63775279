// The ids of groups that are derived from a group. All members count alike, so all give a derived group the same id.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/comm/group/mix_hash.h"

namespace cohort::comm {

// A hash, never 0: the id of a group of `members` made from the group `parent`. `tag` is the way in which it was made,
// and `sequence` tells apart groups that were made in the same way.
inline uint64_t GroupId(uint64_t parent, uint64_t tag, uint64_t sequence, const std::vector<int>& members,
                        uint64_t epoch) {
  uint64_t hash = MixHash(MixHash(MixHash(MixHash(0, parent), tag), sequence), epoch);
  for (const int member : members) hash = MixHash(hash, static_cast<uint64_t>(member));
  return hash == 0 ? 1 : hash;
}

// Numbers the groups that one group's members derive from it. One thread at a time.
class DerivedGroups {
 public:
  // The number of earlier subgroups with these members, plus one. Counted for good, since a member may still use a
  // group that another has destroyed: 32 bytes for each list that ever was.
  uint64_t NextSubgroup(const std::vector<int>& members) { return ++subgroups_[GroupId(0, 0, 0, members, 0)]; }
  // The number of earlier groups of all members that were derived with `tag`, plus one.
  uint64_t NextWith(uint64_t tag) { return ++with_tag_[tag]; }
  uint64_t NextSplit() { return ++splits_; }

  // The caller's present attempt to agree on the survivors (shrink.h).
  struct ShrinkRound {
    uint64_t number = 1;
    std::string proposal;  // that it has put into the store; empty: nothing yet
  };
  ShrinkRound& shrink_round() { return shrink_round_; }

 private:
  std::unordered_map<uint64_t, uint64_t> subgroups_;  // by a hash of the members
  std::map<uint64_t, uint64_t> with_tag_;
  uint64_t splits_ = 0;
  ShrinkRound shrink_round_;
};

}  // namespace cohort::comm
