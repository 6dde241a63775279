// Names one link of this process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::comm::tcp {

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

}  // namespace cohort::comm::tcp
