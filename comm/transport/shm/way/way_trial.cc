#include "cohort/comm/transport/shm/way/way_trial.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace cohort::comm::shm {

void RankedWays::Add(Way way, uint32_t time) {
  size_t place = count++;
  for (; place > 0 && times[place - 1] > time; --place) {
    ways[place] = ways[place - 1];
    times[place] = times[place - 1];
  }
  ways[place] = way;
  times[place] = time;
}

uint32_t WayTrial::LengthOf(LongTrials& longs, uint32_t round) {
  const uint32_t shorts = longs.in_vain == 0 ? 1 : std::max(round / 8, 1u) << (longs.in_vain - 1);
  if (longs.shorts++ < shorts) return kTries;
  longs.shorts = 0;
  longs.in_vain = std::min(longs.in_vain + 1, kMostInVain);
  return kTries + round;
}

Way WayTrial::Next(const RankedWays& ranked, const WayRings& rings) {
  const Way quickest = ranked.ways[0];
  const Way before = std::exchange(quickest_, quickest);
  longs_[static_cast<size_t>(quickest)].in_vain = 0;
  if (ranked.count == 1) return quickest;
  if (left_ == 0) {
    const auto known = ranked.ways.begin() + static_cast<std::ptrdiff_t>(ranked.count);
    const auto place = static_cast<size_t>(std::find(ranked.ways.begin(), known, before) - ranked.ways.begin());
    const bool lost = place > 0 && place < ranked.count;
    const size_t other = lost ? place : 1 + number_ % (ranked.count - 1);
    if (!lost && ++since_ <= every_ * ranked.times[other] / ranked.times[0]) return quickest;
    const Way way = ranked.ways[other];
    const uint32_t round = rings.RoundOf(way);
    const bool promising = round > 0 && ranked.times[other] < kPromising * ranked.times[0];
    if (lost && !promising) return quickest;
    left_ = lost ? kTries + round : promising ? LengthOf(longs_[static_cast<size_t>(way)], round) : kTries;
    tried_ = way;
  }
  if (--left_ == 0) {
    since_ = 0;
    ++number_;
    every_ = std::min(2 * every_, kTryEvery);
  }
  return tried_;
}

}  // namespace cohort::comm::shm
