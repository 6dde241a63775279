#include "cohort/comm/group/derived_groups.h"

#include "cohort/comm/group/mix_hash.h"

namespace cohort::comm {
uint64_t GroupId(uint64_t parent, uint64_t tag, uint64_t sequence, const std::vector<int>& members, uint64_t epoch) {
  uint64_t hash = MixHash(MixHash(MixHash(MixHash(0, parent), tag), sequence), epoch);
  for (const int member : members) hash = MixHash(hash, static_cast<uint64_t>(member));
  return hash == 0 ? 1 : hash;
}

}  // namespace cohort::comm
