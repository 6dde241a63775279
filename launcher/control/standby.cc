#include "launcher/control/standby.h"

#include <algorithm>

namespace cohort::launcher {

std::optional<v1::LogAck> StandbyCopy::OnPage(const v1::LogPage& page, TimePoint now) {
  if (page.term() < term_) return std::nullopt;
  if (page.term() > term_) {
    term_ = page.term();
    while (!entries_.empty() && entries_.back().number() > copy_.applied()) entries_.pop_back();
    end_ = copy_.applied();
  }
  for (const v1::LogEntry& entry : page.entries()) {
    if (entry.number() <= end_) continue;
    if (entry.number() > end_ + 1) return std::nullopt;
    entries_.push_back(entry);
    end_ = entry.number();
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
