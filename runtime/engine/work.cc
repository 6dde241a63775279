#include "cohort/runtime/engine/work.h"

#include <memory>
#include <utility>

namespace cohort::runtime {
namespace {

std::atomic<int64_t> listeners_that_may_call{0};

void Count(bool may_call, int64_t change) {
  if (may_call) listeners_that_may_call.fetch_add(change, std::memory_order_relaxed);
}

}  // namespace

int64_t ListenersThatMayCall() { return listeners_that_may_call.load(std::memory_order_relaxed); }

class WorkState::Callback final : public WorkListener {
 public:
  explicit Callback(std::function<void(const absl::Status&)> fn) : fn_(std::move(fn)) {}

 private:
  void OnDone(const absl::Status& status) override {
    const std::unique_ptr<Callback> self(this);
    fn_(status);
  }
  void OnDropped() override { delete this; }
  std::function<void(const absl::Status&)> fn_;
};

WorkState::~WorkState() {
  WorkListener* list = listeners_.load(std::memory_order_acquire);
  while (list != nullptr) {
    Count(list->makes_calls_, -1);
    std::exchange(list, list->next_)->OnDropped();
  }
}

void WorkState::Complete(absl::Status status) {
  status_ = std::move(status);
  if ((word_.fetch_or(kDone, std::memory_order_acq_rel) & kWatched) != 0) TellListeners();
}

void WorkState::CompleteAndDrop(absl::Status status) {
  status_ = std::move(status);
  uint32_t before = word_.load(std::memory_order_relaxed);
  while ((before & kWatched) == 0) [[likely]] {
    if (word_.compare_exchange_weak(before, (before | kDone) - kReference, std::memory_order_acq_rel,
                                    std::memory_order_relaxed)) {
      return Dropped(before);
    }
  }
  word_.fetch_or(kDone, std::memory_order_acq_rel);
  TellListeners();
  DropReference();
}

// The thread that takes the list tells it: the completer, or one that came when the operation was done.
void WorkState::TellListeners() {
  WorkListener* list = listeners_.exchange(nullptr, std::memory_order_acq_rel);
  WorkListener* in_order = nullptr;
  while (list != nullptr) {
    WorkListener* next = list->next_;
    list->next_ = in_order;
    in_order = list;
    list = next;
  }
  while (in_order != nullptr) {
    const bool counted = in_order->makes_calls_;  // the listener may be gone, or used again, after the call
    std::exchange(in_order, in_order->next_)->OnDone(status_);
    Count(counted, -1);
  }
}

void WorkState::Reset(uint32_t references) {
  status_ = absl::OkStatus();
  word_.store((word_.load(std::memory_order_relaxed) & kPooled) + references * kReference, std::memory_order_release);
}

void WorkState::Then(std::function<void(const absl::Status&)> fn) {
  Notify(std::make_unique<Callback>(std::move(fn)).release());
}

void WorkState::Notify(WorkListener* listener) {
  if (done()) {
    listener->OnDone(status_);
    return;
  }
  Count(listener->makes_calls_, 1);
  listener->next_ = listeners_.load(std::memory_order_relaxed);
  while (!listeners_.compare_exchange_weak(listener->next_, listener, std::memory_order_acq_rel)) {
  }
  // One that ends the operation from here on sees that there are listeners; one that has ended it did not.
  if ((word_.fetch_or(kWatched, std::memory_order_acq_rel) & kDone) != 0) TellListeners();
}

absl::Status WorkState::WaitOnStream(void* stream) {
  (void)stream;
  Wait(Deadline::Infinite());
  return status_;
}

namespace {

// An operation that was over before it began.
class FinishedState final : public WorkState {
 public:
  explicit FinishedState(absl::Status status) { Complete(std::move(status)); }

 private:
  void Wait(Deadline deadline) override { (void)deadline; }
};

}  // namespace

Work Work::Finished(absl::Status status) {
  if (status.ok()) return Work();
  return Work(new FinishedState(std::move(status)));
}

absl::Status Work::Wait(Deadline deadline) {
  if (state_ == nullptr) return absl::OkStatus();
  if (!state_->done()) state_->Wait(deadline);
  if (state_->done()) return state_->status();
  return absl::DeadlineExceededError("the operation is still pending; its buffers are still in use");
}

absl::Status Work::status() const {
  if (state_ == nullptr) return absl::OkStatus();
  return state_->done() ? state_->status() : absl::UnavailableError("pending");
}

void Work::Then(std::function<void(const absl::Status&)> fn) {
  if (state_ == nullptr) {
    fn(absl::OkStatus());
  } else {
    state_->Then(std::move(fn));
  }
}

void Work::Notify(WorkListener* listener) {
  if (state_ == nullptr) {
    listener->OnDone(absl::OkStatus());
  } else {
    state_->Notify(listener);
  }
}

absl::Status Work::WaitOnStream(void* stream) {
  return state_ == nullptr ? absl::OkStatus() : state_->WaitOnStream(stream);
}

}  // namespace cohort::runtime
