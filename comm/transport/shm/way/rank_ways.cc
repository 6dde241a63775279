#include "cohort/comm/transport/shm/way/rank_ways.h"

#include "cohort/runtime/base/cpu_cache.h"

namespace cohort::comm::shm {

RankWays::RankWays(int local_rank, int local_ranks, std::optional<bool> reads)
    : reads_(reads), from_(static_cast<size_t>(local_ranks)) {
  const Way first = runtime::Level3IsNear() ? Way::kCopied : Way::kRead;
  to_.reserve(from_.size());
  for (int peer = 0; peer < local_ranks; ++peer) to_.emplace_back(first, /*leads=*/local_rank < peer);
}

}  // namespace cohort::comm::shm
