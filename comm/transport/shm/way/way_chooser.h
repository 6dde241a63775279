// A sender's choice of the way to one receiver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cohort/comm/transport/shm/way/way.h"
#include "cohort/comm/transport/shm/way/way_time.h"
#include "cohort/comm/transport/shm/way/way_trial.h"

namespace cohort::comm::shm {

// A message whose way is to be chosen.
struct WayQuestion {
  size_t bytes = 0;   // at least 1
  size_t reader = 0;  // its receiver's local rank; of several the first's
  ToldTimes told = {};
  bool may_read = false;                   // kRead is one of the ways
  std::array<size_t, kWays> ring_bytes{};  // by way
  std::optional<Way> heard = {};           // Arrivals::Latest. Nothing where several receive
};

// A sender's choice for one receiver.
//
// If both send to each other, one way for both is better than two: while one copies and the other reads, each waits
// for the other (64 KiB each way between far CPUs: 12 us, both read 9, both copy past the cache 10). So one of the two,
// the one that leads, chooses for both, and the other takes the way of the latest message that it has received. The
// time of a way is then the leader's work on an exchange: copying in what it sends and out what it receives, or
// reading.
class WayChooser {
 public:
  // `first`: the way of the first messages.
  WayChooser(Way first, bool leads) : first_(first), leads_(leads) {}
  // The way of the next message, or run of short ones.
  Way Choose(const WayQuestion& question);
  // The work on a whole message of `bytes` bytes to the receiver, or from it.
  void NoteSending(Way way, size_t bytes, uint64_t ns) {
    sending_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }
  void NoteReceiving(Way way, size_t bytes, uint64_t ns) {
    receiving_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }
  // The first part of a message of `bytes` bytes was copied in.
  void NoteCopiedIn(Way way, size_t bytes, uint64_t ns) {
    copied_in_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }

 private:
  // The other side need not follow (it may not be able to read): no way is tried more often for its first three times.
  static constexpr uint32_t kFirstTries = 8;

  // In ns per KiB; 0: not known.
  uint32_t TimeOf(Way way, size_t size, const ToldTimes& told) const;
  uint32_t WorkOf(Way way, size_t size) const;

  Way first_;
  bool leads_;
  WayTimes copied_in_;
  WayTimes sending_, receiving_;
  std::array<std::array<uint32_t, kWaySizes>, kWays> first_tries_{};  // of exchanges
  // By may_read, since a link and a fan-out may share a chooser, and by whether both send.
  std::array<std::array<std::array<WayTrial, kWaySizes>, 2>, 2> trials_{};
};

}  // namespace cohort::comm::shm
