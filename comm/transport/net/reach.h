// The ranks that a transport between hosts reaches.
#pragma once

#include <cstddef>

#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::comm::net {

// Whether the rank exists and is on another node than `identity`.
inline bool OnAnotherNode(const runtime::Identity& identity, int world_rank) {
  if (world_rank < 0 || world_rank >= identity.world_size) return false;
  const runtime::NodeInfo& own = identity.nodes[static_cast<size_t>(identity.node)];
  return world_rank < own.first_rank || world_rank >= own.first_rank + own.rank_count;
}

}  // namespace cohort::comm::net
