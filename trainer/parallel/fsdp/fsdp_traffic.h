// FsdpTraffic: what collectives of FullyShardedDataParallel were given to move, not what they sent.
#pragma once

#include <cstdint>

namespace cohort::trainer {

// Calls and bytes of this rank since the root was made.
struct FsdpTraffic {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;  // of the whole gathered vectors, padding included
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;     // of whole flat gradients
  int64_t replicated_bytes = 0;  // of shards that were all-reduced over the replicas
};

}  // namespace cohort::trainer
