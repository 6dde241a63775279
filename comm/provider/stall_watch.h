// Watches a queue of operations for standing still: asks for a comparison of the members' calls when nothing has moved
// for a while (the second net against mismatched calls) and ends operations whose time is up. Costs one read of the
// coarse clock (a few ns) in a poll that moved nothing, and nothing in one that did.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"

namespace cohort::comm {

// Milliseconds-coarse steady time, in nanoseconds; cheap.
uint64_t CoarseNow();
// `now` plus `timeout`; the end of time when that is too far away.
uint64_t DeadlineAfter(uint64_t now, std::chrono::nanoseconds timeout);

class StallWatch {
 public:
  enum class Event {
    kNone,
    kStalled,  // nothing has moved for 50 ms, and again after growing intervals of at most a second
    kOverdue,  // the earliest deadline has passed: ask for a verdict
    kExpired,  // and no verdict came for half a second: give up
  };

  // Something moved.
  void Moved() { since_ = polls_ = 0; }
  // Nothing moved. True when it is time to look at the clock: not in the first moments of a wait, when the next poll is
  // likely to move something.
  bool Waited() { return ++polls_ > kPollsBeforeClock; }
  // Nothing has moved for longer than that.
  bool waiting() const { return polls_ > kPollsBeforeClock; }
  // Nothing moved, and `deadline_ns` is the earliest deadline of what is pending.
  Event Blocked(uint64_t deadline_ns);
  // The operation that was overdue is gone.
  void Clear() { since_ = overdue_ = polls_ = 0; }

 private:
  static constexpr uint64_t kPollsBeforeClock = 16;
  uint64_t polls_ = 0;  // since something moved
  uint64_t since_ = 0;  // of the first poll that moved nothing; 0: the last one moved
  uint64_t next_report_ = 0;
  uint64_t interval_ = 0;
  uint64_t overdue_ = 0;
};

// A complaint held for a second because a better answer may be about to come: a transport's that a peer can't be
// reached, whose reason may be a death; a mismatch of calls that can't be seen from here.
class Suspicion {
 public:
  // Holds the complaint, unless it already holds one. False: this is no lost peer, and nothing is worth waiting for.
  bool Hold(const absl::Status& complaint, int peer);
  // Holds a complaint whose full answer the members' agents have been asked for.
  void HoldForVerdict(const absl::Status& complaint);
  bool held() const { return !complaint_.ok(); }
  // Held, and no better answer has come.
  bool Due() const { return held() && CoarseNow() >= until_; }
  const absl::Status& complaint() const { return complaint_; }
  int peer() const { return peer_; }  // group rank

 private:
  absl::Status complaint_;
  int peer_ = -1;
  uint64_t until_ = 0;
};

}  // namespace cohort::comm
