// Work is the handle of a started operation. It is a value type of one pointer; copies name the same operation.
//
// Dropping a Work ends nothing and waits for nothing: the operation goes on while anything drives progress, and its
// buffers must stay valid until it is done. Its error is then seen by the next call of the group. Keep the Work, or a
// copy of it, to know when the buffers may be reused.
//
// Another thread may wait for an operation while this one starts others. Each thread uses a Work of its own: a copy.
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

// Receives the end of an operation once, as Then does, but without an allocation. The caller owns it and keeps it until
// OnDone has been called.
class WorkListener {
 public:
  // Called on the thread that completes the operation, or at once. It must not block. From here on the listener may be
  // used again.
  virtual void OnDone(const absl::Status& status) = 0;

 protected:
  // `makes_calls`: OnDone may start operations.
  constexpr explicit WorkListener(bool makes_calls = true) : makes_calls_(makes_calls) {}
  ~WorkListener() = default;

 private:
  friend class WorkState;
  // The operation went away without having been done.
  virtual void OnDropped() {}
  WorkListener* next_ = nullptr;
  bool makes_calls_;
};

// The number of listeners and functions (Then) of this process that have yet to be called and may start operations
// then.
int64_t ListenersThatMayCall();

// The shared state behind a Work. A producer (a communicator) derives from it and drives it from the engine. It calls
// Complete or CompleteAndDrop exactly once. References are counted in the object, so that producers can recycle states
// without allocating.
//
// Done, watched (has listeners) and the number of references share one word. An operation's end is therefore one locked
// instruction; each costs about 8 ns.
class WorkState {
 public:
  virtual ~WorkState();

  bool done() const { return (word_.load(std::memory_order_acquire) & kDone) != 0; }
  // The operation's result. It is valid once done().
  const absl::Status& status() const { return status_; }

  void AddReference() { word_.fetch_add(kReference, std::memory_order_relaxed); }
  void DropReference() { Dropped(word_.fetch_sub(kReference, std::memory_order_acq_rel)); }

 protected:
  // Stores the result and runs the callbacks, on the calling thread. The engine's owner calls it once and holds a
  // reference until it returns.
  void Complete(absl::Status status);
  // As Complete, and drops the caller's reference: the state may be gone afterwards.
  void CompleteAndDrop(absl::Status status);
  // Makes a recycled state new, with `references` references. No other thread may know the state yet.
  void Reset(uint32_t references);
  // The last reference is gone: delete this, or put it back into a pool. Not called for pooled states.
  virtual void Recycle() { delete this; }

  // A pooled state is left alone when its last reference goes. Its pool sees that it is unused() and reuses it.
  bool unused() const { return word_.load(std::memory_order_acquire) < kReference; }
  void SetPooled() { word_.fetch_or(kPooled, std::memory_order_relaxed); }
  // The pool is going. True: the state is unused, and the caller deletes it. False: the state recycles itself.
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
  // Called after a reference was dropped from this word. A pooled state may be gone already.
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
  Work() = default;  // names no operation: it is done and OK
  // Returns the work of an operation that was refused or had nothing to do.
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
  // Detaches. The operation goes on, and its buffers must stay valid until it is done.
  ~Work() {
    if (state_ != nullptr) state_->DropReference();
  }

  // Blocks until the operation is done. Meanwhile the calling thread drives all operations of the process. Returns the
  // operation's status, or kDeadlineExceeded if `deadline` passes first. The operation is then still pending, and its
  // buffers are still in use.
  absl::Status Wait(Deadline deadline = Deadline::Infinite());
  absl::Status Wait(std::chrono::nanoseconds timeout) { return Wait(Deadline::After(timeout)); }

  // True when the operation has failed, or its result is in place and the buffers may be reused. Makes no progress.
  bool Done() const { return state_ == nullptr || state_->done(); }
  // The operation's status. While it is not Done(): kUnavailable("pending").
  absl::Status status() const;
  // Calls `fn` once with the status: at once when done, otherwise on the thread that completes the operation. `fn` must
  // not block and must not wait on other works.
  void Then(std::function<void(const absl::Status&)> fn);
  // Calls listener->OnDone once with the status: at once when done, otherwise on the thread that completes the
  // operation.
  void Notify(WorkListener* listener);
  // Makes `stream` (a cudaStream_t) wait for a CUDA operation and returns without waiting. For host operations it
  // blocks.
  absl::Status WaitOnStream(void* stream);

 private:
  WorkState* state_ = nullptr;
};

}  // namespace cohort::runtime
