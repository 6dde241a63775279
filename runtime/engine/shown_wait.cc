#include "cohort/runtime/engine/shown_wait.h"

#include <pthread.h>
#include <time.h>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/engine/other_threads.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {
namespace {

constexpr int64_t kMeasureNs = 80'000'000;  // a sleep and a half
// A thread that waits and sleeps uses about 0.1 % of a CPU.
constexpr int64_t kQuietShare = 25;
// A thread that neither Cohort nor UCX has started may sleep, for example until a file has been read, and then make its
// first call. After this time it is taken to make none.
constexpr int64_t kQuietBesideOthersNs = 30'000'000'000;

}  // namespace

void WaitingThreads::NoteOther(const void* thread) {
  const void* nobody = nullptr;
  if (!only_.compare_exchange_strong(nobody, thread, std::memory_order_relaxed) && nobody != thread) {
    several_.store(true, std::memory_order_relaxed);
  }
}

// A thread that has made no call so far may be about to make one that others wait for. If it computes, that shows. If
// it sleeps, only time tells.
bool ShownWait::Quiet() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  const int64_t cpu_ns = int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  const auto now_ns = static_cast<int64_t>(SteadyNow());
  if (measured_ns_ != 0 && now_ns - measured_ns_ < kMeasureNs) return quiet_;
  const bool quiet = measured_ns_ != 0 && cpu_ns - cpu_ns_ < (now_ns - measured_ns_) / kQuietShare;
  if (!quiet) quiet_since_ns_ = 0;
  if (quiet && quiet_since_ns_ == 0) quiet_since_ns_ = measured_ns_;
  quiet_ = quiet && (now_ns - quiet_since_ns_ >= kQuietBesideOthersNs || !HasOtherThreads());
  measured_ns_ = now_ns;
  cpu_ns_ = cpu_ns;
  return quiet_;
}

void ShownWait::Sleeps(const AwaitedCalls& calls, Deadline deadline, bool may_go_on) {
  if (calls.first == 0 || segment_->local_rank() < 0) return;
  const bool bound = Quiet() && !may_go_on && deadline.infinite() && ListenersThatMayCall() == 0 &&
                     segment_->black_box().CalledOnlyBy(pthread_self());
  shown_ = ShowWait(segment_->control(segment_->local_rank()), calls.first, calls.last, bound);
}

void ShownWait::Hide() {
  HideWait(segment_->control(segment_->local_rank()), shown_);
  shown_ = 0;
  measured_ns_ = 0;
}

}  // namespace cohort::runtime
