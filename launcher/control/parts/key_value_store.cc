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
  waiters_.Take(key, answered);
  return "";
}

const std::string* KeyValueStore::Get(const std::string& key, Waiter waiter, TimePoint now, TimePoint until,
                                      bool* refused) {
  *refused = false;
  if (const auto found = values_.find(key); found != values_.end()) return &found->second;
  *refused = key.size() > kMaxKeyBytes || !waiters_.Add(key, waiter, now, until);
  return nullptr;
}

}  // namespace cohort::launcher
