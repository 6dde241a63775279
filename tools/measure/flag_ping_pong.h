// The one-way latency of a flag between two CPUs. It says how the CPUs are placed, on which every latency of shared
// memory depends: hypervisors move virtual CPUs between caches while a benchmark runs. Latencies compare only where the
// flags' latencies are alike.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

namespace cohort::measure {

// Memory that both sides map, all zeros at first.
struct FlagMemory {
  struct alignas(128) Line {
    std::atomic<uint64_t> round;
  };
  Line lines[2];
};

// One of the two sides, each a thread of its own. Both call Measure equally often.
class FlagPingPong {
 public:
  // `side` is 0 or 1.
  FlagPingPong(FlagMemory* memory, int side) : memory_(memory), side_(side) {}
  // Asked now and then while this side waits for the other: true ends the measurement.
  void set_give_up(std::function<bool()> give_up) { give_up_ = std::move(give_up); }
  // 0 where it was given up. Otherwise half of a round trip that is not interrupted, in nanoseconds: of the one that a
  // quarter undercuts. Blocks until the other side has called it too; takes some 200 us then, and where the sides
  // wait for CPUs little more than 5 ms: then fewer round trips count.
  double Measure();

 private:
  bool WaitFor(const std::atomic<uint64_t>& flag, bool* last) const;

  FlagMemory* memory_;
  int side_;
  uint64_t round_ = 0;
  std::function<bool()> give_up_;
};

// "near": the CPUs share a cache; "far": they do not; "moved": one of the two latencies, measured before and after a
// point, is near and the other is far.
std::string_view PlacementOf(double before_ns, double after_ns);

}  // namespace cohort::measure
