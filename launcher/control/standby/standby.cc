#include "cohort/launcher/control/standby/standby.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "cohort/launcher/control/roster.h"
#include "google/protobuf/util/message_differencer.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::hours kLatest{24 * 365 * 200};  // of a clock: far from where sums overflow
constexpr uint64_t kLastTerm = 1u << 30;

template <typename Entries>
auto AtOrAfter(Entries& entries, uint64_t number) {
  return std::lower_bound(entries.begin(), entries.end(), number,
                          [](const v1::LogEntry& entry, uint64_t n) { return entry.number() < n; });
}

}  // namespace

bool StandbyCopy::IsNext(const v1::LogEntry& entry) const {
  if (entry.number() != end_ + 1 || entry.has_start() != (entry.number() == 1)) return false;
  const auto here = AtOrAfter(entries_, entry.number());
  const TimePoint last = here == entries_.begin() ? copy_.now() : TimeOf(*std::prev(here));
  const TimePoint time = TimeOf(entry);
  if (entry.connection() >= FirstConnection(term_ + 1)) return false;  // of hosts that are yet to come
  if (time < last || time.time_since_epoch() > kLatest) return false;
  return !entry.has_start() || CheckPlan(entry.start()).ok();
}

// Later entries of the host before are dropped only if this host has something else in their place.
void StandbyCopy::Take(const v1::LogEntry& entry) {
  end_ = entry.number();
  const auto here = AtOrAfter(entries_, entry.number());
  if (here != entries_.end() && google::protobuf::util::MessageDifferencer::Equals(*here, entry)) return;
  entries_.erase(here, entries_.end());
  entries_.push_back(entry);
}

std::optional<v1::LogAck> StandbyCopy::OnPage(const v1::LogPage& page, TimePoint now) {
  if (page.term() < term_ || page.term() > kLastTerm) return std::nullopt;
  if (page.term() > term_) {
    term_ = page.term();
    end_ = copy_.applied();  // whether what follows is the same there is yet to be seen
  }
  for (const v1::LogEntry& entry : page.entries()) {
    if (entry.number() <= end_) continue;
    if (!IsNext(entry)) return std::nullopt;
    Take(entry);
    arrived_ = now;
  }
  const uint64_t sure = std::min(page.committed(), end_);
  for (const v1::LogEntry& entry : entries_) {
    if (entry.number() > sure) break;
    if (entry.number() > copy_.applied()) (void)copy_.Apply(entry);
  }
  while (!entries_.empty() && entries_.front().number() <= std::min(page.forget(), copy_.applied())) {
    entries_.pop_front();
  }
  v1::LogAck ack;
  ack.set_term(term_);
  ack.set_received(end_);
  ack.set_applied(copy_.applied());
  return ack;
}

}  // namespace cohort::launcher
