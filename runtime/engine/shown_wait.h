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

// One drive of one thread, by the engine's owner. Costs nothing before Sleeps is called.
class ShownWait {
 public:
  explicit ShownWait(Segment* segment) : segment_(segment) {}
  ~ShownWait() { Moved(); }
  ShownWait(const ShownWait&) = delete;
  ShownWait& operator=(const ShownWait&) = delete;

  // Everything was looked at in vain, and the thread is about to sleep until `deadline` for the end of `calls`.
  // `may_go_on`: something else in this process, not known here, may make calls meanwhile.
  void Sleeps(const AwaitedCalls& calls, Deadline deadline, bool may_go_on);
  // Something has moved.
  void Moved() {
    if (shown_) [[unlikely]]
      Hide();
  }

 private:
  void Hide();
  bool Quiet();

  Segment* const segment_;
  bool shown_ = false;
  bool quiet_ = false;       // this process used next to no CPU when that was last measured
  int64_t measured_ns_ = 0;  // then, by the steady clock; 0: not yet
  int64_t cpu_ns_ = 0;       // used by then
};

}  // namespace cohort::runtime
