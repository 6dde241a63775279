// All that a rank has learned of the ways of private messages, by its peers on this host. One object a transport, used
// by the engine's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/comm/transport/shm/way/way_chooser.h"
#include "cohort/comm/transport/shm/way/way_time.h"
#include "cohort/runtime/base/clock.h"

namespace cohort::comm::shm {

class RankWays {
 public:
  // `reads`: true reads wherever the receiver can, false copies with plain stores; nothing: the quickest way, as
  // learned.
  RankWays(int local_rank, int local_ranks, std::optional<bool> reads);

  // The way of a message to the peer of this local rank.
  Way Choose(size_t peer, const WayQuestion& question) {
    if (reads_.has_value()) return *reads_ && question.may_read ? Way::kRead : Way::kCopied;
    return to_[peer].Choose(question);
  }
  WayChooser& To(size_t peer) { return to_[peer]; }
  ReceivedTimes& From(size_t peer) { return from_[peer]; }

  uint64_t Now() { return clock_.Now(); }  // in ns
  // A part of a message was read, in `ns`.
  void AddReading(uint64_t ns) { reading_ns_ += ns; }
  // The time of all such parts so far, of all peers.
  uint64_t reading_ns() const { return reading_ns_; }

 private:
  const std::optional<bool> reads_;
  std::vector<ReceivedTimes> from_;  // by local rank
  std::vector<WayChooser> to_;       // likewise
  runtime::FastClock clock_;
  uint64_t reading_ns_ = 0;
};

}  // namespace cohort::comm::shm
