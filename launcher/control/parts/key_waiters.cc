#include "cohort/launcher/control/parts/key_waiters.h"

namespace cohort::launcher {

bool KeyWaiters::Add(const std::string& key, Waiter waiter, TimePoint now, TimePoint until) {
  if (until <= now || waits_.size() >= kMaxWaiters) return false;
  const uint64_t number = next_number_++;
  by_key_.emplace(std::pair(key, number), waits_.emplace(until, Wait{key, number, waiter}));
  return true;
}

void KeyWaiters::Take(const std::string& key, std::vector<Waiter>* answered) {
  const auto begin = by_key_.lower_bound({key, 0});
  auto end = begin;
  for (; end != by_key_.end() && end->first.first == key; ++end) {
    answered->push_back(end->second->second.waiter);
    waits_.erase(end->second);
  }
  by_key_.erase(begin, end);
}

std::vector<KeyWaiters::Waiter> KeyWaiters::Expire(TimePoint now) {
  std::vector<Waiter> expired;
  while (!waits_.empty() && waits_.begin()->first <= now) {
    const auto wait = waits_.begin();
    by_key_.erase({wait->second.key, wait->second.number});
    expired.push_back(wait->second.waiter);
    waits_.erase(wait);
  }
  return expired;
}

std::optional<KeyWaiters::TimePoint> KeyWaiters::NextExpiry() const {
  if (waits_.empty()) return std::nullopt;
  return waits_.begin()->first;
}

void KeyWaiters::Forget(uint64_t connection) {
  for (auto it = by_key_.begin(); it != by_key_.end();) {
    if (it->second->second.waiter.connection == connection) {
      waits_.erase(it->second);
      it = by_key_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace cohort::launcher
