// The job's key-value store: each key is written once, read often (agents cache), and may be waited for. Bounded in
// keys, bytes and waiters, since what ranks send decides how much it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/control/parts/key_waiters.h"

namespace cohort::launcher {

class KeyValueStore {
 public:
  using TimePoint = KeyWaiters::TimePoint;
  using Waiter = KeyWaiters::Waiter;

  static constexpr size_t kMaxKeyBytes = 1024;  // as Runtime::Put allows
  static constexpr size_t kMaxValueBytes = 64 << 10;
  static constexpr size_t kMaxKeys = 128 << 10;
  static constexpr size_t kMaxTotalBytes = 64 << 20;  // keys and values together

  // Stores the value and moves the key's waiters to `answered`. Empty when stored or when the key already has this very
  // value, else why not: another value is there, a limit is exceeded.
  std::string Put(const std::string& key, const std::string& value, std::vector<Waiter>* answered);

  // The key's value, or null; the waiter is then remembered until `until`, unless *refused is set: it is not to wait
  // (`until` has passed, or too many wait) and must be answered at once.
  const std::string* Get(const std::string& key, Waiter waiter, TimePoint now, TimePoint until, bool* refused);

  // Takes out the waiters whose time has passed.
  std::vector<Waiter> Expire(TimePoint now) { return waiters_.Expire(now); }
  // When the next waiter's time passes.
  std::optional<TimePoint> NextExpiry() const { return waiters_.NextExpiry(); }
  // Forgets what a connection waits for.
  void Forget(uint64_t connection) { waiters_.Forget(connection); }

 private:
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
  KeyWaiters waiters_;
};

}  // namespace cohort::launcher
