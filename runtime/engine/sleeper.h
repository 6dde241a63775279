// Sleeper: how a thread of this rank sleeps so that local peers (through the rank's wake word) and descriptors can wake
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// Thread-safe. The order is: Announce, look once more whether there is something to do, Sleep unless there is,
// Withdraw. A Segment::Wake of this rank after Announce ends the sleep.
class Sleeper {
 public:
  explicit Sleeper(Segment* segment);
  ~Sleeper();

  // Lets peers see that this rank sleeps. Returns the token that Sleep wants.
  uint32_t Announce();
  void Withdraw();
  // Sleeps until a wake-up, until one of `descriptors` is readable, or until the deadline. May return early.
  void Sleep(uint32_t token, std::span<const int> descriptors, Deadline deadline);
  // Wakes all sleeping threads of this rank.
  void WakeSelf();

 private:
  class Epoll;
  Segment* const segment_;
  RankControl& control_;
  // Made when descriptors are slept on for the first time; used by one thread at a time.
  std::atomic<bool> epoll_busy_{false};
  std::unique_ptr<Epoll> epoll_;
};

}  // namespace cohort::runtime
