// Samples what the programs of a node's ranks do, while somebody wants to know. The looks are those of an
// ActivitySampler: the loop says whom it looks at, and takes what it has seen.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/launcher/agent/activity/activity_sampler.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/trace.pb.h"

namespace cohort::launcher {

// On the loop's thread.
class RankStates {
 public:
  static constexpr std::chrono::milliseconds kLookEvery{20};
  // While the kernel's counts alone tell what the ranks do: each look keeps one of them from its CPU.
  static constexpr std::chrono::milliseconds kLookWhileCountedEvery{40};
  static constexpr double kCounted = 0.9;  // the least part of the time since the last look that is counted then
  // Looked at in one go: about 0.3 ms of a CPU. More ranks take turns.
  static constexpr size_t kRanksAtOnce = 16;

  struct Surroundings {
    // The process that takes part as a local rank, if there is one.
    std::function<WatchedProcess(int local_rank)> process_of;
    // Whether it waits in a call of Cohort's.
    std::function<bool(int local_rank)> waits;
  };

  // `ranks`: the world ranks of the local ones.
  RankStates(EventLoop* loop, std::vector<uint32_t> ranks, Surroundings surroundings);
  ~RankStates() { loop_->Cancel(timer_); }
  RankStates(const RankStates&) = delete;
  RankStates& operator=(const RankStates&) = delete;

  // Begins to look, or ends. What was seen and not taken is lost at the end. Where there can't be another thread
  // nothing is seen.
  void Watch(bool on);
  // Adds what was seen since the last time.
  void Take(v1::TracedCalls* calls);

 private:
  // Kept of a rank while nobody takes any. What follows is lost.
  static constexpr size_t kMostShapes = 256;
  static constexpr int kMostStates = 4096;
  static constexpr uint64_t kNever = ~uint64_t{0};
  struct Seen {
    v1::RankStates states;  // that nobody has taken
    std::map<std::tuple<Activity, std::string, std::string>, uint32_t> shapes;
    uint64_t begin_ns = 0;  // of the latest of them
    uint64_t end_ns = 0;
  };

  void LookAtSome();
  void TakeSamples();
  void Forget();
  static void Add(const ProcessActivity::State& state, Seen* seen);

  EventLoop* const loop_;
  const std::vector<uint32_t> world_ranks_;
  const Surroundings surroundings_;
  std::unique_ptr<ActivitySampler> sampler_;  // from the first time on
  uint64_t begun_ns_ = kNever;                // when somebody began to want to know
  std::vector<Seen> seen_;                    // by local rank
  size_t next_ = 0;                           // whose turn it is
  size_t counted_ = 0, not_counted_ = 0;      // samples since the last look, see kLookWhileCountedEvery
  EventLoop::TimerId timer_ = 0;
};

}  // namespace cohort::launcher
