#include "cohort/comm/transport/shm/way/way_chooser.h"

namespace cohort::comm::shm {

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
