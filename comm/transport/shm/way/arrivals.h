// The messages that have lately arrived in one direction, for the sender in the other one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cohort/comm/transport/shm/way/way.h"

namespace cohort::comm::shm {

// The latest messages of one stream, as the writer of the stream in the other direction has to know them.
class Arrivals {
 public:
  // A message of `bytes` bytes has begun to arrive.
  void Note(Way way, size_t bytes, uint64_t now_ns) {
    const size_t size = WaySizeOf(bytes);
    latest_[size] = {.way = way, .age = 0, .meets = now_ns <= soon_until_ns_[size]};
  }
  // The way of the latest message of this class, or nothing if more than kMostAge were sent since. Before each send.
  std::optional<Way> Latest(size_t size) {
    if (latest_[size].age == kMostAge) return std::nullopt;
    ++latest_[size].age;
    return latest_[size].way;
  }

  // Around the copying in of a message in the other direction.
  void BeginSending(size_t bytes) { soon_until_ns_[WaySizeOf(bytes)] = UINT64_MAX; }
  void EndSending(size_t bytes, uint64_t began_ns, uint64_t now_ns) {
    soon_until_ns_[WaySizeOf(bytes)] = now_ns + (now_ns - began_ns);
  }
  // Whether both ranks copy in at the same time: the latest message of this class began to arrive while one was copied
  // in for the other direction, or sooner after that than the copy took. Not so where one rank answers the other.
  bool Meets(size_t size) const { return latest_[size].meets; }

 private:
  static constexpr uint32_t kMostAge = 2;
  struct Arrival {
    Way way = Way::kCopied;
    uint32_t age = kMostAge;  // messages sent since
    bool meets = false;
  };
  std::array<Arrival, kWaySizes> latest_;
  std::array<uint64_t, kWaySizes> soon_until_ns_{};
};

}  // namespace cohort::comm::shm
