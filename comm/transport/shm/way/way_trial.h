// When a sender tries another way than the quickest one, and for how many messages. Every way but the one in use may
// have become the better one, or its times may come from messages that paid for memory that nobody had touched.
//
// A ring that has not been written to for a while is in no cache: the first messages through it take up to three times
// as long as those after it has gone round once. A trial of three messages shows such a way slower than it is. So some
// trials last until the ring has gone round:
//
//   quickest way   R R R R R R | C C C | R R R R R R R | C C C C C C C C C | C C C C ...
//                                short                   until the ring has gone round; then copies are quicker
//
// And a way with a ring that seems to have become slower stays in use for that long: perhaps other programs' data have
// taken its place in the caches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/shm/way/way.h"

namespace cohort::comm::shm {

// The ways whose times are known, the quickest first. At least one.
struct RankedWays {
  size_t count = 0;
  std::array<Way, kWays> ways{};
  std::array<uint32_t, kWays> times{};  // in any unit

  void Add(Way way, uint32_t time);
};

// The rings, by way, and the bytes that a message (or a run of short ones) puts into one.
struct WayRings {
  std::array<size_t, kWays> bytes{};  // 0: the way has none
  size_t message_bytes = 1;

  // The messages in which the ring goes round. 0: there is none, or it goes round within a message.
  uint32_t RoundOf(Way way) const { return static_cast<uint32_t>(bytes[static_cast<size_t>(way)] / message_bytes); }
};

// The messages (or runs of short ones) of one class.
class WayTrial {
 public:
  // The way of the next message.
  Way Next(const RankedWays& ranked, const WayRings& rings);

 private:
  // Messages, times the ratio of the two ways, after which another way is tried by kTries messages. Costs at most 3 %
  // of the time in the long run, whatever the ratio. The first trial comes sooner, each later one twice as late.
  static constexpr uint32_t kTryEvery = 100;
  static constexpr uint32_t kFirstTryAfter = 12;
  static constexpr uint32_t kTries = 3;
  // A way with a ring is promising if it takes less than this multiple of the quickest way's time.
  static constexpr uint32_t kPromising = 3;
  // The second trial of a promising way is long: it has a whole round of messages more. Then one trial in an eighth of
  // the round is long, half as often after each that was in vain; trials in vain count up to this number. Long trials
  // cost another 4 % at most in the beginning, and an eighth of that in the long run.
  static constexpr uint32_t kMostInVain = 4;

  struct LongTrials {
    uint32_t shorts = 0;   // trials since the last long one
    uint32_t in_vain = 0;  // long ones since the way was the quickest
  };

  // How many messages the next trial of a promising way has.
  static uint32_t LengthOf(LongTrials& longs, uint32_t round);

  Way quickest_ = Way::kRead;  // at the last message
  uint32_t every_ = kFirstTryAfter;
  uint32_t since_ = 0;   // messages since the last trial
  uint32_t number_ = 0;  // of trials so far
  Way tried_ = Way::kRead;
  uint32_t left_ = 0;  // messages of the trial under way
  std::array<LongTrials, kWays> longs_;
};

}  // namespace cohort::comm::shm
