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

uint32_t WayChooser::TimeOf(Way way, size_t size, const ToldTimes& told) const {
  const uint32_t received = told.Time(way, size);
  if (received == 0 || way == Way::kRead) return received;
  return received + copied_in_[static_cast<size_t>(way)][size].ns_per_kib();
}

uint32_t WayChooser::WorkOf(Way way, size_t size) const {
  const uint32_t receiving = receiving_[static_cast<size_t>(way)][size].ns_per_kib();
  if (receiving == 0 || way == Way::kRead) return receiving;
  return receiving + sending_[static_cast<size_t>(way)][size].ns_per_kib();
}

Way WayChooser::Choose(const WayQuestion& question) {
  const size_t size = WaySizeOf(question.bytes);
  const std::optional<Way> heard = size == 0 ? std::nullopt : question.heard;
  const bool exchange = heard.has_value();
  if (exchange && !leads_ && (question.may_read || *heard != Way::kRead)) return *heard;
  RankedWays ranked;
  for (size_t i = 0; i < kWays; ++i) {
    const Way way = static_cast<Way>((static_cast<size_t>(first_) + i) % kWays);
    if (way == Way::kRead && !question.may_read) continue;
    const uint32_t time = exchange ? WorkOf(way, size) : TimeOf(way, size, question.told);
    if (time > 0) {
      ranked.Add(way, time);
    } else if (!exchange || first_tries_[static_cast<size_t>(way)][size]++ < kFirstTries) {
      return way;
    }
  }
  if (ranked.count == 0) return question.may_read ? first_ : Way::kCopied;
  const WayRings rings{.bytes = question.ring_bytes, .message_bytes = (size == 0 ? kShortRun : 1) * question.bytes};
  return trials_[question.may_read ? 1 : 0][exchange ? 1 : 0][size].Next(ranked, rings);
}

}  // namespace cohort::comm::shm
