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

uint32_t WayChooser::TriesOfCopies(const Trial& trial, const WayQuestion& question, size_t others) {
  const size_t once = WaySizeOf(question.bytes) == 0 ? kShortRun * question.bytes : question.bytes;
  const size_t round = question.ring_bytes / std::max<size_t>(once, 1);
  const size_t every = std::max<size_t>(kLongTrialEvery, round / 8);
  return kTries + static_cast<uint32_t>(trial.number / others % every == 1 ? round : 0);
}

Way WayChooser::Choose(const WayQuestion& question) {
  const size_t size = WaySizeOf(question.bytes);
  const std::optional<Way> heard =
      size == 0 || question.arrivals == nullptr ? std::nullopt : question.arrivals->Latest(size);
  const bool exchange = heard.has_value();
  if (exchange && !leads_ && (question.may_read || *heard != Way::kRead)) return *heard;
  std::array<Way, kWays> ways{};  // those that there are, the quickest first
  std::array<uint32_t, kWays> times{};
  size_t count = 0;
  for (size_t i = 0; i < kWays; ++i) {
    const Way way = static_cast<Way>((static_cast<size_t>(first_) + i) % kWays);
    if (way == Way::kRead && !question.may_read) continue;
    const uint32_t time = exchange ? WorkOf(way, size) : TimeOf(way, size, question.told);
    if (time == 0) {
      if (!exchange || first_tries_[static_cast<size_t>(way)][size]++ < kFirstTries) return way;
      continue;
    }
    size_t place = count++;
    for (; place > 0 && times[place - 1] > time; --place) {
      ways[place] = ways[place - 1];
      times[place] = times[place - 1];
    }
    ways[place] = way;
    times[place] = time;
  }
  if (count == 0) return question.may_read ? first_ : Way::kCopied;
  if (count == 1) return ways[0];
  Trial& trial = trials_[question.may_read ? 1 : 0][exchange ? 1 : 0][size];
  const size_t other = 1 + trial.number % (count - 1);
  const uint32_t next_try = trial.every * times[other] / times[0];
  ++trial.since;
  if (trial.since <= next_try) return ways[0];
  const bool promising = ways[other] == Way::kCopied && 2 * times[other] < 3 * times[0];
  if (trial.since >= next_try + (promising ? TriesOfCopies(trial, question, count - 1) : kTries)) {
    trial = {.every = std::min(2 * trial.every, kTryEvery), .since = 0, .number = trial.number + 1};
  }
  return ways[other];
}

}  // namespace cohort::comm::shm
