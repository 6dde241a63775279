// Shows the wait of the engine's driver to its agent and its local peers, from the moment when it comes to sleeping.
#pragma once

#include <atomic>
#include <cstdint>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

struct AwaitedCalls;

// The threads that have ever waited for calls. Any thread.
class WaitingThreads {
 public:
  void Note(const void* thread) {
    if (only_.load(std::memory_order_relaxed) != thread) [[unlikely]]
      NoteOther(thread);
  }
  bool several() const { return several_.load(std::memory_order_relaxed); }

 private:
  void NoteOther(const void* thread);

  std::atomic<const void*> only_{nullptr};
  std::atomic<bool> several_{false};
};

// One drive of one thread. Costs nothing before Sleeps is called.
class ShownWait {
 public:
  explicit ShownWait(Segment* segment) : segment_(segment) {}
  ~ShownWait() { Moved(); }
  ShownWait(const ShownWait&) = delete;
  ShownWait& operator=(const ShownWait&) = delete;

  // Everything was looked at in vain, and the thread is about to sleep until `deadline` for the end of `calls`.
  // `may_go_on`: something else in this process may make calls meanwhile. For the engine's owner.
  void Sleeps(const AwaitedCalls& calls, Deadline deadline, bool may_go_on);
  // Something has moved. The ownership may have gone to another thread meanwhile.
  void Moved() {
    if (shown_ != 0) [[unlikely]]
      Hide();
  }

 private:
  void Hide();
  bool Quiet();

  Segment* const segment_;
  uint64_t shown_ = 0;          // the number of the wait that is shown; 0: none
  bool quiet_ = false;          // nothing else in this process seems to be about to make a call
  int64_t quiet_since_ns_ = 0;  // this process has used next to no CPU since then; 0: it used some
  int64_t measured_ns_ = 0;     // when that was last measured, by the steady clock; 0: not yet
  int64_t cpu_ns_ = 0;          // used by then
};

}  // namespace cohort::runtime
