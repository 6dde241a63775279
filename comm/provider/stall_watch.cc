#include "cohort/comm/provider/stall_watch.h"

#include <time.h>

#include <algorithm>

namespace cohort::comm {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kFirstReport = 50 * kMillisecond;
constexpr uint64_t kLongestInterval = 1000 * kMillisecond;
constexpr uint64_t kVerdictTime = 500 * kMillisecond;
constexpr uint64_t kSuspicionTime = 1000 * kMillisecond;

}  // namespace

uint64_t CoarseNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t DeadlineAfter(uint64_t now, std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0) return now;
  return now + static_cast<uint64_t>(timeout.count());  // at most 2^63, and so is now
}

StallWatch::Event StallWatch::Blocked(uint64_t deadline_ns) {
  const uint64_t now = CoarseNow();
  if (since_ == 0) {
    since_ = now;
    interval_ = kFirstReport;
    next_report_ = now + interval_;
  }
  if (overdue_ != 0) {
    if (now >= overdue_ + kVerdictTime) return Event::kExpired;
  } else if (now >= deadline_ns) {
    overdue_ = now;
    return Event::kOverdue;
  }
  if (now < next_report_) return Event::kNone;
  interval_ = std::min(2 * interval_, kLongestInterval);
  next_report_ = now + interval_;
  return Event::kStalled;
}

bool Suspicion::Hold(const absl::Status& complaint, int peer) {
  if (!absl::IsUnavailable(complaint) || peer < 0) return false;
  if (held()) return true;
  HoldForVerdict(complaint);
  peer_ = peer;
  return true;
}

void Suspicion::HoldForVerdict(const absl::Status& complaint) {
  if (held()) return;
  complaint_ = complaint;
  until_ = CoarseNow() + kSuspicionTime;
}

}  // namespace cohort::comm
