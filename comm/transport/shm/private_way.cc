#include "cohort/comm/transport/shm/private_way.h"

#include <algorithm>

namespace cohort::comm::shm {

void WayTime::Note(size_t bytes, uint64_t ns) {
  const uint64_t per_kib = ns * 1024 / std::max<size_t>(bytes, 1);
  latest_[noted_ % latest_.size()] = static_cast<uint32_t>(std::clamp<uint64_t>(per_kib, 1, kMost));
  ++noted_;
  const size_t known = std::min<size_t>(noted_, latest_.size());
  if (known < 3) return;
  std::array<uint32_t, 5> sorted = latest_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(known / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  median_ = *middle;
}

uint64_t ReceivedTimes::Told(bool can_read) const {
  static_assert(1 + 10 * 2 * kWaySizes <= 64 && WayTime::kMost == (1 << 10) - 1);
  uint64_t told = 0;
  for (size_t way = times_.size(); way-- > 0;) {
    for (size_t size = kWaySizes; size-- > 0;) told = told << 10 | times_[way][size].ns_per_kib();
  }
  return told << 1 | (can_read ? 1 : 0);
}

Way WayChooser::Choose(size_t bytes, uint64_t told) {
  const size_t size = WaySizeOf(bytes);
  const uint32_t out = ReceivedTimes::TimeIn(told, Way::kCopied, size);
  const uint32_t read = ReceivedTimes::TimeIn(told, Way::kRead, size);
  const auto other = [](Way way) { return way == Way::kRead ? Way::kCopied : Way::kRead; };
  const uint32_t of_first = first_ == Way::kRead ? read : out;
  if (of_first == 0) return first_;
  if (out == 0 || read == 0) return other(first_);
  const uint32_t copied = out + copied_in_[size].ns_per_kib();
  const Way better = read < copied ? Way::kRead : Way::kCopied;
  Trial& trial = trials_[size];
  ++trial.since;
  const uint32_t next_try = trial.every * std::max(read, copied) / std::min(read, copied);
  if (trial.since <= next_try) return better;
  if (trial.since >= next_try + kTries) trial = {.every = std::min(2 * trial.every, kTryEvery), .since = 0};
  return other(better);
}

}  // namespace cohort::comm::shm
