// The times that ways have taken, of one pair of ranks: as a receiver knows them, and as it tells them to the sender.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cohort/comm/transport/shm/way/way.h"

namespace cohort::comm::shm {

// Nanoseconds per KiB of one way at one size: the second least of the last five messages (of three: the least). Three
// of five may have been interrupted, or be the first ones that go this way again. Those find caches cold and take up to
// three times as long as the next ones. A way that becomes slower shows it after four messages, a quicker one after
// two.
class WayTime {
 public:
  static constexpr uint32_t kMost = 1023;

  void Note(size_t bytes, uint64_t ns);
  // 1 to kMost; 0: fewer than three are known.
  uint32_t ns_per_kib() const { return usual_; }

 private:
  std::array<uint32_t, 5> latest_{};
  uint32_t noted_ = 0;
  uint32_t usual_ = 0;
};

// The times of all ways and sizes, at one side.
using WayTimes = std::array<std::array<WayTime, kWaySizes>, kWays>;

// The times as a receiver tells them to a sender. Any words are good.
struct ToldTimes {
  static constexpr size_t kWords = 3;
  std::array<uint64_t, kWords> words{};

  // Whether the receiver can read the sender's private memory at all.
  bool can_read() const { return (words[0] & 1) != 0; }
  // In ns per KiB; 0: not known.
  uint32_t Time(Way way, size_t size) const {
    const size_t index = static_cast<size_t>(way) * kWaySizes + size;
    return static_cast<uint32_t>(words[index / kPerWord] >> (1 + 10 * (index % kPerWord))) & WayTime::kMost;
  }

  static constexpr size_t kPerWord = 6;
};

// Whether a sender is worth telling: by an eighth, or one is not known.
constexpr bool DifferMuch(uint32_t told, uint32_t now) {
  const uint32_t more = told < now ? now : told, less = told < now ? told : now;
  return (more - less) * 8 > less;
}

// A receiver's view of one sender.
class ReceivedTimes {
 public:
  void Note(Way way, size_t bytes, uint64_t ns) { times_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns); }
  // In ns per KiB; 0: not known.
  uint32_t Time(Way way, size_t size) const { return times_[static_cast<size_t>(way)][size].ns_per_kib(); }
  ToldTimes Told(bool can_read) const;

 private:
  WayTimes times_;
};

}  // namespace cohort::comm::shm
