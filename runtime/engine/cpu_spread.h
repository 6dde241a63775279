// How ranks that share CPUs spread themselves over them. Ranks that yield to each other every microsecond look busy and
// warm to the kernel, which then leaves three of four on one of two CPUs for as long as they run; a small collective
// takes half as long again there, and twice as long with eight ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

// `cpu_of_rank`: where each of a node's ranks was last seen while it waited; -1: nowhere. The CPU that rank `own`
// should move to: the emptiest of `allowed`, when its own CPU holds at least two ranks more than that one and no later
// rank is there, so that one rank moves at a time. -1: it should stay.
int BetterCpu(std::span<const int> cpu_of_rank, int own, std::span<const int> allowed);

// One rank's part. It moves by narrowing its affinity mask for a moment, so that the kernel stays free to move it
// again. The thread then has a mask of its own, which does not follow a cpuset that grows later; a mask that somebody
// else gives it in that moment is lost. Owner of the engine only.
class CpuSpread {
 public:
  // `shared`: the ranks of this node share its CPUs; otherwise nothing is ever done.
  CpuSpread(Segment* segment, bool shared);
  ~CpuSpread();
  CpuSpread(const CpuSpread&) = delete;
  CpuSpread& operator=(const CpuSpread&) = delete;

  // Called by a rank that waits, at any rate; looks around every few milliseconds.
  void Look(std::chrono::steady_clock::time_point now) {
    if (now >= next_look_) [[unlikely]]
      LookNow(now);
  }

 private:
  // A rank tells the others the CPU it was last seen on, in a block of its arena.
  using Whereabouts = std::atomic<int32_t>;
  void LookNow(std::chrono::steady_clock::time_point now);
  bool Announce();
  void Update();

  Segment* const segment_;
  Whereabouts* own_ = nullptr;
  std::vector<const Whereabouts*> others_;  // by local rank; null: has said nothing yet
  std::vector<int> cpus_;                   // by local rank
  int wish_ = -1;                           // where the last look would have moved to
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace cohort::runtime
