// When the rings of a node's ranks are read again while a trace is taken. Each look keeps a rank from its CPU, and the
// ranks that call with it wait: so rings that hold little are read more rarely, and those of a flood too, by a budget.
#pragma once

#include <chrono>
#include <cstddef>

namespace cohort::launcher {

class ReadPace {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // A ring holds 512 calls: at the least interval a rank may make 170,000 a second, at the longest 12,800.
  static constexpr std::chrono::milliseconds kLeast{3};
  static constexpr std::chrono::milliseconds kMost{40};
  // After a ring that was full: bursts come again.
  static constexpr std::chrono::milliseconds kHold{2000};
  // Messages wait for the next look.
  static constexpr std::chrono::milliseconds kLongestPause{500};
  // A call takes some 3 us of the agent and of dlaunch, so that a CPU's share for these calls is 2 %. Rings that hold
  // more are read later, and lose calls meanwhile.
  static constexpr size_t kCallsPerSecondAndCpu = 6500;

  // `cpus`: that the node's ranks have together.
  explicit ReadPace(int cpus) : calls_per_second_(kCallsPerSecondAndCpu * static_cast<size_t>(cpus > 1 ? cpus : 1)) {}

  // The time until the next look, after one that found `news` calls and ranges of all ranks, and `fullest` of 512 in
  // one ring.
  Duration Next(size_t news, size_t fullest);
  void Restart() {
    interval_ = kLeast;
    hold_ = Duration::zero();
  }

 private:
  const size_t calls_per_second_;
  Duration interval_ = kLeast;
  Duration hold_{};  // for which the interval does not grow
};

}  // namespace cohort::launcher
