// Requests that wait for a key until it is there or their time has passed. Bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {

class KeyWaiters {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr size_t kMaxWaiters = 256 << 10;

  // A waiting request: a connection and its request number.
  struct Waiter {
    uint64_t connection = 0;
    uint64_t request = 0;
  };

  // False if it is not to wait: `until` has passed, or too many wait.
  bool Add(const std::string& key, Waiter waiter, TimePoint now, TimePoint until);
  // Moves those that wait for this key to `answered`.
  void Take(const std::string& key, std::vector<Waiter>* answered);
  // Takes out those whose time has passed.
  std::vector<Waiter> Expire(TimePoint now);
  // When the next one's time passes.
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

  Waits waits_;
  uint64_t next_number_ = 0;
  std::map<std::pair<std::string, uint64_t>, Waits::iterator> by_key_;  // by key and number
};

}  // namespace cohort::launcher
