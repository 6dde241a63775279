#include "cohort/runtime/engine/wait_policy.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/cpu_budget.h"

namespace cohort::runtime {
namespace {

constexpr int kSpinNs = 1000;
constexpr uint32_t kSharedYieldsPerClock = 4;

double PauseNs() {
  constexpr int kPauses = 64;
  uint64_t best = ~uint64_t{0};
  for (int attempt = 0; attempt < 8; ++attempt) {
    const uint64_t start = SteadyNow();
    for (int i = 0; i < kPauses; ++i) Pause();
    best = std::min(best, SteadyNow() - start);
  }
  return std::max(1.0, static_cast<double>(best) / kPauses);
}

}  // namespace

WaitPolicy MakeWaitPolicy(int local_ranks) {
  WaitPolicy policy;
  if (Oversubscribed(local_ranks)) {
    policy.yields_per_clock = kSharedYieldsPerClock;
  } else {
    policy.spins = std::clamp(static_cast<int>(kSpinNs / PauseNs()), 4, 200);
  }
  return policy;
}

void Backoff::Wait() {
  constexpr int kSpins = 16;
  constexpr int kYields = 2000;
  ++rounds_;
  if (rounds_ <= kSpins) {
    Pause();
  } else if (rounds_ <= kYields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace cohort::runtime
