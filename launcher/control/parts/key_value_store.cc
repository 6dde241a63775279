#include "cohort/launcher/control/parts/key_value_store.h"

namespace cohort::launcher {

std::string KeyValueStore::Put(const std::string& key, const std::string& value, std::vector<Waiter>* answered) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return "the key has " + std::to_string(key.size()) + " bytes; 1 to " + std::to_string(kMaxKeyBytes) +
           " are allowed";
  }
  if (value.size() > kMaxValueBytes) {
    return "the value of key '" + key + "' has " + std::to_string(value.size()) + " bytes; at most " +
           std::to_string(kMaxValueBytes) + " are allowed: move larger data by a collective";
  }
  if (const auto found = values_.find(key); found != values_.end()) {
    if (found->second == value) return "";
    return "key '" + key + "' already has another value: keys are written once";
  }
  if (values_.size() >= kMaxKeys || bytes_ + key.size() + value.size() > kMaxTotalBytes) {
    return "the job's key-value store is full (" + std::to_string(values_.size()) + " keys, " +
           std::to_string(bytes_ >> 20) + " MiB); it is meant for addresses and the like";
  }
  bytes_ += key.size() + value.size();
  values_.emplace(key, value);
  const auto begin = waits_by_key_.lower_bound({key, 0});
  auto end = begin;
  for (; end != waits_by_key_.end() && end->first.first == key; ++end) {
    answered->push_back(end->second->second.waiter);
    waits_.erase(end->second);
  }
  waits_by_key_.erase(begin, end);
  return "";
}

const std::string* KeyValueStore::Get(const std::string& key, Waiter waiter, TimePoint now, TimePoint until,
                                      bool* refused) {
  *refused = false;
  if (const auto found = values_.find(key); found != values_.end()) return &found->second;
  if (until <= now || key.size() > kMaxKeyBytes || waits_.size() >= kMaxWaiters) {
    *refused = true;
    return nullptr;
  }
  const uint64_t number = next_number_++;
  waits_by_key_.emplace(std::pair(key, number), waits_.emplace(until, Wait{key, number, waiter}));
  return nullptr;
}

std::vector<KeyValueStore::Waiter> KeyValueStore::Expire(TimePoint now) {
  std::vector<Waiter> expired;
  while (!waits_.empty() && waits_.begin()->first <= now) {
    const auto wait = waits_.begin();
    waits_by_key_.erase({wait->second.key, wait->second.number});
    expired.push_back(wait->second.waiter);
    waits_.erase(wait);
  }
  return expired;
}

std::optional<KeyValueStore::TimePoint> KeyValueStore::NextExpiry() const {
  if (waits_.empty()) return std::nullopt;
  return waits_.begin()->first;
}

void KeyValueStore::Forget(uint64_t connection) {
  for (auto it = waits_by_key_.begin(); it != waits_by_key_.end();) {
    if (it->second->second.waiter.connection == connection) {
      waits_.erase(it->second);
      it = waits_by_key_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace cohort::launcher
