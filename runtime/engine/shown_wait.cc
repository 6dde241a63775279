#include "cohort/runtime/engine/shown_wait.h"

#include <pthread.h>
#include <time.h>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/engine/engine.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {
namespace {

constexpr int64_t kMeasureNs = 80'000'000;  // a sleep and a half
// A thread that waits and sleeps uses about 0.1 % of a CPU.
constexpr int64_t kQuietShare = 25;

}  // namespace

void WaitingThreads::NoteOther(const void* thread) {
  const void* nobody = nullptr;
  if (!only_.compare_exchange_strong(nobody, thread, std::memory_order_relaxed) && nobody != thread) {
    several_.store(true, std::memory_order_relaxed);
  }
}

// A thread that has made no call so far may be about to make one that others wait for. If it computes, that shows.
bool ShownWait::Quiet() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  const int64_t cpu_ns = int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  const auto now_ns = static_cast<int64_t>(SteadyNow());
  if (measured_ns_ != 0 && now_ns - measured_ns_ < kMeasureNs) return quiet_;
  quiet_ = measured_ns_ != 0 && cpu_ns - cpu_ns_ < (now_ns - measured_ns_) / kQuietShare;
  measured_ns_ = now_ns;
  cpu_ns_ = cpu_ns;
  return quiet_;
}

void ShownWait::Sleeps(const AwaitedCalls& calls, Deadline deadline, bool may_go_on) {
  if (calls.first == 0 || segment_->local_rank() < 0) return;
  const bool bound = Quiet() && !may_go_on && deadline.infinite() && ListenersThatMayCall() == 0 &&
                     segment_->black_box().CalledOnlyBy(pthread_self());
  ShowWait(segment_->control(segment_->local_rank()), calls.first, calls.last, bound);
  shown_ = true;
}

void ShownWait::Hide() {
  HideWait(segment_->control(segment_->local_rank()));
  shown_ = false;
  measured_ns_ = 0;
}

}  // namespace cohort::runtime
