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
  const auto usual = sorted.begin() + static_cast<std::ptrdiff_t>((known - 1) / 3);
  std::nth_element(sorted.begin(), usual, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  usual_ = *usual;
}

uint64_t MessageTime::OfCopies(uint64_t now_ns, uint64_t reading_ns, uint64_t sender_reading_ns) const {
  const uint64_t elapsed = now_ns - began_ns_;
  const uint64_t reads = std::max(reading_ns - reading_before_ns_, sender_reading_ns);
  if (reads <= parts_ns_) return elapsed;
  return elapsed > reads ? elapsed - (reads - parts_ns_) : parts_ns_;
}

ToldTimes ReceivedTimes::Told(bool can_read) const {
  static_assert(kWays * kWaySizes <= 2 * ToldTimes::kPerWord && 1 + 10 * ToldTimes::kPerWord <= 64 &&
                WayTime::kMost == (1 << 10) - 1);
  ToldTimes told;
  told.words[0] = can_read ? 1 : 0;
  for (size_t i = 0; i < kWays * kWaySizes; ++i) {
    const uint64_t time = times_[i / kWaySizes][i % kWaySizes].ns_per_kib();
    told.words[i / ToldTimes::kPerWord] |= time << (1 + 10 * (i % ToldTimes::kPerWord));
  }
  return told;
}

Way WayChooser::Choose(size_t bytes, const ToldTimes& told, bool may_read) {
  const size_t size = WaySizeOf(bytes);
  std::array<Way, kWays> ways{};  // those that there are, the quickest first
  std::array<uint32_t, kWays> times{};
  size_t count = 0;
  for (size_t i = 0; i < kWays; ++i) {
    const Way way = static_cast<Way>((static_cast<size_t>(first_) + i) % kWays);
    if (way == Way::kRead && !may_read) continue;
    const uint32_t received = told.Time(way, size);
    if (received == 0) return way;
    const uint32_t time = received + (way == Way::kRead ? 0 : copied_in_[static_cast<size_t>(way)][size].ns_per_kib());
    size_t place = count++;
    for (; place > 0 && times[place - 1] > time; --place) {
      ways[place] = ways[place - 1];
      times[place] = times[place - 1];
    }
    ways[place] = way;
    times[place] = time;
  }
  Trial& trial = trials_[may_read ? 1 : 0][size];
  const size_t other = 1 + trial.number % (count - 1);
  const uint32_t next_try = trial.every * times[other] / times[0];
  ++trial.since;
  if (trial.since <= next_try) return ways[0];
  if (trial.since >= next_try + kTries) {
    trial = {.every = std::min(2 * trial.every, kTryEvery), .since = 0, .number = trial.number + 1};
  }
  return ways[other];
}

}  // namespace cohort::comm::shm
