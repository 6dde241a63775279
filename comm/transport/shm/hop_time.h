// How long a line takes from the CPU of the peer that wrote it, and so how soon to look for one.
//
//   writer   ........ store ........................ store ...
//   reader   look ─► takes the line ─► look, look, ─► look
//                    away from the writer
//
// A look for a message that is not there makes the reader's CPU an owner of the line. The store then waits until that
// copy is gone (one hop), and the reader fetches the line again (one more). A reader that comes a little later, when
// the store is done, fetches it once. Ranks that call at about the same time therefore wait for a part of a hop before
// they look. Measured between far CPUs (a hop of 190 ns), 2 ranks, 8 B: all-to-all 0.30 us with the wait, 0.43 without
// it, reduce 0.30 and 0.56. Where a message has been there for long, the wait is lost, so it is short.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cohort::comm::shm {

// The costs of a look on this machine. Nanoseconds, at least 1.
struct LookCosts {
  uint64_t clock_ns = 1;  // of reading the clock
  uint64_t pause_ns = 1;  // of runtime::Pause: 5 to 45, by processor

  // Measured when it is first asked for, in some microseconds; by any thread.
  static const LookCosts& OfThisMachine();
};

// One reader's view of one writer. By the engine's owner.
class HopTime {
 public:
  explicit HopTime(const LookCosts& costs = LookCosts::OfThisMachine()) : costs_(costs) {}

  // Whether to time the look for message `number`: the clock takes as long as a short hop.
  static bool Times(uint64_t number) { return number % kEvery == 0; }

  // A look that found a message took so long, the clock included: the line was fetched, since the reader had not seen
  // what was written. The shorter of two counts, since whatever disturbs a look makes it longer.
  void Add(uint64_t ns) {
    const uint64_t hop = std::max(std::min(ns, latest_ns_), costs_.clock_ns) - costs_.clock_ns;
    latest_ns_ = ns;
    pauses_ = static_cast<int>(std::min<uint64_t>(hop / kPartOfHop / costs_.pause_ns, kMostPauses));
  }

  // Pauses before the first look of a call that has just sent something to others.
  const int& pauses() const { return pauses_; }

 private:
  static constexpr uint64_t kEvery = 16;
  // A sixth of a hop is waited. CPUs that share a cache (20 to 50 ns) wait for nothing; two looks that were both
  // interrupted cost a few pauses and no more.
  static constexpr uint64_t kPartOfHop = 6;
  static constexpr uint64_t kMostPauses = 3;

  LookCosts costs_;
  uint64_t latest_ns_ = 0;
  int pauses_ = 0;
};

}  // namespace cohort::comm::shm
