#include "cohort/comm/transport/shm/way/way_time.h"

#include <algorithm>

namespace cohort::comm::shm {

void WayTime::Note(size_t bytes, uint64_t ns) {
  const uint64_t per_kib = ns * 1024 / std::max<size_t>(bytes, 1);
  latest_[noted_ % latest_.size()] = static_cast<uint32_t>(std::clamp<uint64_t>(per_kib, 1, kMost));
  ++noted_;
  const size_t known = std::min<size_t>(noted_, latest_.size());
  if (known < 3) return;
  std::array<uint32_t, 5> sorted = latest_;
  const auto usual = sorted.begin() + static_cast<std::ptrdiff_t>((known - 1) / 3);
  std::nth_element(sorted.begin(), usual, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  usual_ = *usual;
}

ToldTimes ReceivedTimes::Told(bool can_read) const {
  static_assert(kWays * kWaySizes <= ToldTimes::kWords * ToldTimes::kPerWord && 1 + 10 * ToldTimes::kPerWord <= 64 &&
                WayTime::kMost == (1 << 10) - 1);
  ToldTimes told;
  told.words[0] = can_read ? 1 : 0;
  for (size_t i = 0; i < kWays * kWaySizes; ++i) {
    const uint64_t time = times_[i / kWaySizes][i % kWaySizes].ns_per_kib();
    told.words[i / ToldTimes::kPerWord] |= time << (1 + 10 * (i % ToldTimes::kPerWord));
  }
  return told;
}

}  // namespace cohort::comm::shm
