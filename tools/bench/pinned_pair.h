// Two pinned processes, a gate between them, and a clock: what the latency benchmarks of this folder have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/runtime/segment/segment.h"
#include "tools/measure/flag_ping_pong.h"

namespace cohort::bench {

inline constexpr int kMostSamples = 1 << 20;

// The memory that both processes and their parent share.
struct SharedState {
  struct alignas(128) Side {
    std::atomic<uint64_t> arrivals;
    std::atomic<uint32_t> samples;
    uint64_t ticks[kMostSamples];  // of each timed call
  };
  Side sides[2];

  measure::FlagMemory flags;
  double flag_before_ns;  // one way, measured before and after the body
  double flag_after_ns;

  // A little key-value store: entries are written once.
  struct Entry {
    std::atomic<uint32_t> state;  // 0 free, 1 being written, 2 there
    uint32_t bytes;
    char key[120];
    char value[16 * 1024];
  };
  Entry entries[64];
};

// Time-stamp counter, or the steady clock where there is none.
uint64_t Ticks();
// Nanoseconds of one tick, measured once per process.
double NanosecondsPerTick();

struct Statistics {
  double minimum = 0;
  double median = 0;
  double p99 = 0;
  double flag_before_ns = 0;  // one-way latency of a flag right before and after: the placement of the CPUs
  double flag_after_ns = 0;
};

// One of the two processes.
class Side {
 public:
  Side(int rank, SharedState& shared, runtime::Segment& segment) : segment(segment), rank_(rank), shared_(shared) {}
  int rank() const { return rank_; }
  SharedState& shared() { return shared_; }
  // Waits until the other side has come as often.
  void Gate();
  void Record(uint64_t ticks) {
    SharedState::Side& side = shared_.sides[rank_];
    const uint32_t index = side.samples.load(std::memory_order_relaxed);
    if (index < kMostSamples) side.ticks[index] = ticks;
    side.samples.store(index + 1, std::memory_order_release);
  }
  // Each call behind a gate and timed alone.
  void TimeGated(int calls, const std::function<void()>& call);
  // Calls back to back, timed in batches.
  void TimeBackToBack(int calls, const std::function<void()>& call);

  runtime::Segment& segment;

 private:
  int rank_;
  SharedState& shared_;
  uint64_t gates_ = 0;
};

// Runs `body` in two processes, pinned to the first two CPUs of this one, over a new segment, and returns the
// statistics, in ns, of the larger of both sides' times of each sample. Ends the program when a side fails.
Statistics RunPair(const std::function<void(Side&)>& body);

void PrintHeader(const std::string& title);
void PrintRow(const std::string& what, size_t bytes, const Statistics& statistics);

}  // namespace cohort::bench
