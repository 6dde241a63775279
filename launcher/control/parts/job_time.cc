#include "cohort/launcher/control/parts/job_time.h"

#include <algorithm>

namespace cohort::launcher {
namespace {

// A process that is called this much later than it asked was stopped or starved.
constexpr std::chrono::milliseconds kOwnStall{500};

}  // namespace

bool JobTime::Advance(TimePoint now) {
  const bool stopped = now > promised_ + kOwnStall;
  if (stopped) paused_ += now - promised_;
  now_ = std::max(now - paused_, now_ + std::chrono::nanoseconds(1));
  return stopped;
}

}  // namespace cohort::launcher
