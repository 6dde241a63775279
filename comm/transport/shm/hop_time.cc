#include "cohort/comm/transport/shm/hop_time.h"

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/engine/wait_policy.h"

namespace cohort::comm::shm {
namespace {

// The least time of eight rounds of calls, for one call.
template <typename Call>
uint64_t LeastTime(const Call& call) {
  constexpr int kCalls = 16;
  uint64_t least = UINT64_MAX;
  for (int round = 0; round < 8; ++round) {
    const uint64_t began_ns = runtime::SteadyNow();
    for (int i = 0; i < kCalls; ++i) call();
    least = std::min(least, (runtime::SteadyNow() - began_ns) / kCalls);
  }
  return std::max<uint64_t>(least, 1);
}

}  // namespace

const LookCosts& LookCosts::OfThisMachine() {
  static const LookCosts costs{.clock_ns = LeastTime([] { (void)runtime::SteadyNow(); }),
                               .pause_ns = LeastTime([] { runtime::Pause(); })};
  return costs;
}

}  // namespace cohort::comm::shm
