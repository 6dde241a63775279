// Names one link of this process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::comm::net {

struct LinkKey {
  uint64_t group = 0;
  uint32_t epoch = 0;
  uint32_t lane = 0;
  int32_t peer = 0;  // world rank

  friend bool operator==(const LinkKey&, const LinkKey&) = default;
};
struct LinkKeyHash {
  size_t operator()(const LinkKey& key) const {
    uint64_t hash = key.group ^ (uint64_t{key.epoch} << 32 | key.lane) * 0x9e3779b97f4a7c15u;
    hash ^= static_cast<uint64_t>(key.peer) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 29);
  }
};
// Stands for all links of a group; no link has it.
inline LinkKey WholeGroup(uint64_t group, uint32_t epoch) { return {group, epoch, 0, -1}; }
inline LinkKey WholeGroup(const LinkKey& key) { return WholeGroup(key.group, key.epoch); }

}  // namespace cohort::comm::net
