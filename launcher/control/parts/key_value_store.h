// The job's key-value store: each key is written once, read often (agents cache), and may be waited for. Bounded in
// keys, bytes and waiters, since what ranks send decides how much it holds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cohort::launcher {

class KeyValueStore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr size_t kMaxKeyBytes = 1024;  // as Runtime::Put allows
  static constexpr size_t kMaxValueBytes = 64 << 10;
  static constexpr size_t kMaxKeys = 128 << 10;
  static constexpr size_t kMaxTotalBytes = 64 << 20;  // keys and values together
  static constexpr size_t kMaxWaiters = 256 << 10;

  // A waiting request: a connection and its request number.
  struct Waiter {
    uint64_t connection = 0;
    uint64_t request = 0;
  };

  // Stores the value and moves the key's waiters to `answered`. Empty when stored or when the key already has this very
  // value, else why not: another value is there, a limit is exceeded.
  std::string Put(const std::string& key, const std::string& value, std::vector<Waiter>* answered);

  // The key's value, or null; the waiter is then remembered until `until`, unless *refused is set: it is not to wait
  // (`until` has passed, or too many wait) and must be answered at once.
  const std::string* Get(const std::string& key, Waiter waiter, TimePoint now, TimePoint until, bool* refused);

  // Takes out the waiters whose time has passed.
  std::vector<Waiter> Expire(TimePoint now);
  // When the next waiter's time passes.
  std::optional<TimePoint> NextExpiry() const;
  // Forgets what a connection waits for.
  void Forget(uint64_t connection);

 private:
  struct Wait {
    std::string key;
    uint64_t number = 0;
    Waiter waiter;
  };
  using Waits = std::multimap<TimePoint, Wait>;

  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
  Waits waits_;
  uint64_t next_number_ = 0;
  std::map<std::pair<std::string, uint64_t>, Waits::iterator> waits_by_key_;  // by key and number
};

}  // namespace cohort::launcher
