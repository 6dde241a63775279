// Work: the handle of an operation that was started. Value type, one pointer; copies name the same operation.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::runtime {

// Told once that an operation is done: what Then does, without allocating. Owned by whoever passes it on, and kept
// until it has been called.
class WorkListener {
 public:
  // On the thread that completes the operation, or at once. Must not block. The listener may be used again from here
  // on.
  virtual void OnDone(const absl::Status& status) = 0;

 protected:
  constexpr WorkListener() = default;
  ~WorkListener() = default;

 private:
  friend class WorkState;
  // The operation went away without having been done.
  virtual void OnDropped() {}
  WorkListener* next_ = nullptr;
};

// The shared state behind a Work. Its producer (a communicator) derives from it, drives it from the engine, and calls
// Complete or CompleteAndDrop exactly once. Intrusively counted, so that producers can recycle states without
// allocating.
//
// Done, watched (has listeners) and the number of references share one word, so that an operation's end is one locked
// instruction: each costs about 8 ns.
class WorkState {
 public:
  virtual ~WorkState();

  bool done() const { return (word_.load(std::memory_order_acquire) & kDone) != 0; }
  // Valid once done().
  const absl::Status& status() const { return status_; }

  void AddReference() { word_.fetch_add(kReference, std::memory_order_relaxed); }
  void DropReference() { Dropped(word_.fetch_sub(kReference, std::memory_order_acq_rel)); }

 protected:
  // Stores the result and runs the callbacks, on the calling thread. Called once, by the engine's owner, who holds a
  // reference until it returns.
  void Complete(absl::Status status);
  // The same, and drops the caller's reference: the state may be gone afterwards.
  void CompleteAndDrop(absl::Status status);
  // Makes a recycled state, or one that nobody else knows of yet, new with so many references.
  void Reset(uint32_t references);
  // The last reference is gone: delete this, or put it back into a pool. Not called for pooled states.
  virtual void Recycle() { delete this; }

  // A pooled state is left alone when its last reference goes: its pool sees that it is unused(), and reuses it.
  bool unused() const { return word_.load(std::memory_order_acquire) < kReference; }
  void SetPooled() { word_.fetch_or(kPooled, std::memory_order_relaxed); }
  // The pool is going. True: the state is unused, and the caller deletes it. False: it recycles itself.
  bool ClearPooled() { return word_.fetch_and(~kPooled, std::memory_order_acq_rel) < kReference; }

 private:
  friend class Work;
  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kWatched = 2;
  static constexpr uint32_t kPooled = 4;
  static constexpr uint32_t kReference = 8;

  // Blocks, driving progress, until done() or the deadline.
  virtual void Wait(Deadline deadline) = 0;
  // Makes `stream` (a cudaStream_t) wait for the operation. The default waits on the host.
  virtual absl::Status WaitOnStream(void* stream);
  void Then(std::function<void(const absl::Status&)> fn);
  void Notify(WorkListener* listener);
  void TellListeners();
  // After a reference was dropped from this word. A pooled state may be gone already.
  void Dropped(uint32_t before) {
    if (before < 2 * kReference && (before & kPooled) == 0) Recycle();
  }

  std::atomic<uint32_t> word_{0};
  absl::Status status_;
  class Callback;
  std::atomic<WorkListener*> listeners_{nullptr};  // newest first
};

class [[nodiscard]] Work {
 public:
  Work() = default;  // names no operation: done, OK
  // An operation that was refused or had nothing to do.
  static Work Finished(absl::Status status);
  explicit Work(WorkState* state) : state_(state) {
    if (state_ != nullptr) state_->AddReference();
  }
  // Takes over a reference that the caller has.
  static Work Adopt(WorkState* state) {
    Work work;
    work.state_ = state;
    return work;
  }
  Work(const Work& other) : Work(other.state_) {}
  Work(Work&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Work& operator=(Work other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  // Detaches: the operation goes on, its buffers must stay valid until it is done.
  ~Work() {
    if (state_ != nullptr) state_->DropReference();
  }

  // Blocks until the operation is done, in the calling thread, which drives the progress of all operations of the
  // process meanwhile. Returns the operation's status, or kDeadlineExceeded when `deadline` passes first: then the
  // operation is still pending and its buffers are still in use.
  absl::Status Wait(Deadline deadline = Deadline::Infinite());
  absl::Status Wait(std::chrono::nanoseconds timeout) { return Wait(Deadline::After(timeout)); }

  // True when the result is in place and the buffers may be reused, or the operation has failed. Does not progress.
  bool Done() const { return state_ == nullptr || state_->done(); }
  // The operation's status; kUnavailable("pending") while it is not Done().
  absl::Status status() const;
  // Calls fn once with the status: at once when done, else on the thread that completes the operation. fn must not
  // block and must not wait on other works.
  void Then(std::function<void(const absl::Status&)> fn);
  // Calls listener->OnDone once with the status: at once when done, else on the thread that completes the operation.
  void Notify(WorkListener* listener);
  // CUDA operations: makes `stream` (a cudaStream_t) wait; returns without waiting. Host operations: waits here.
  absl::Status WaitOnStream(void* stream);

 private:
  WorkState* state_ = nullptr;
};

}  // namespace cohort::runtime
