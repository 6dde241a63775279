#include "cohort/launcher/agent/trace/read_pace.h"

#include <algorithm>

#include "cohort/runtime/segment/black_box.h"

namespace cohort::launcher {

ReadPace::Duration ReadPace::Next(size_t news, size_t fullest) {
  constexpr size_t kRing = runtime::kBlackBoxRecords;
  if (fullest >= kRing) hold_ = kHold;
  if (fullest * 4 >= kRing) {
    interval_ = kLeast;
  } else if (fullest * 16 < kRing && hold_ <= Duration::zero()) {
    interval_ = std::min<Duration>(interval_ * 2, kMost);
  }
  const std::chrono::duration<double> affordable(static_cast<double>(news) / static_cast<double>(calls_per_second_));
  const Duration pause =
      std::min<Duration>(kLongestPause, std::max(interval_, std::chrono::duration_cast<Duration>(affordable)));
  hold_ = std::max(Duration::zero(), hold_ - pause);
  return pause;
}

}  // namespace cohort::launcher
