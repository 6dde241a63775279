#include "cohort/launcher/agent/trace/read_pace.h"

#include <algorithm>

#include "cohort/runtime/segment/black_box.h"

namespace cohort::launcher {

ReadPace::Duration ReadPace::Next(size_t news, size_t fullest) {
  constexpr size_t kRing = runtime::kBlackBoxRecords;
  if (fullest * 4 >= kRing) {
    interval_ = kLeast;
  } else if (fullest * 16 < kRing) {
    interval_ = std::min<Duration>(interval_ * 2, kMost);
  }
  const std::chrono::duration<double> affordable(static_cast<double>(news) / static_cast<double>(calls_per_second_));
  return std::max(interval_, std::chrono::duration_cast<Duration>(affordable));
}

}  // namespace cohort::launcher
