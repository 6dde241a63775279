#include "runtime/work.h"

#include <memory>
#include <utility>

namespace cohort::runtime {

// The callbacks are linked newest first until the operation is done; then the list is `closed` for good.
struct WorkState::Callbacks {
  Callbacks* next = nullptr;
  static constinit Callbacks closed;
};
constinit WorkState::Callbacks WorkState::Callbacks::closed;
struct WorkState::Callback : Callbacks {
  std::function<void(const absl::Status&)> fn;
};

WorkState::~WorkState() {
  Callbacks* list = callbacks_.load(std::memory_order_acquire);
  while (list != nullptr && list != &Callbacks::closed) delete static_cast<Callback*>(std::exchange(list, list->next));
}

void WorkState::Complete(absl::Status status) {
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  Callbacks* list = callbacks_.exchange(&Callbacks::closed, std::memory_order_acq_rel);
  if (list == nullptr) [[likely]]
    return;
  Callbacks* in_order = nullptr;
  while (list != nullptr) {
    Callbacks* next = list->next;
    list->next = in_order;
    in_order = list;
    list = next;
  }
  while (in_order != nullptr) {
    const std::unique_ptr<Callback> callback(static_cast<Callback*>(in_order));
    in_order = callback->next;
    callback->fn(status_);
  }
}

void WorkState::Reset() {
  status_ = absl::OkStatus();
  callbacks_.store(nullptr, std::memory_order_relaxed);
  done_.store(false, std::memory_order_release);
}

void WorkState::Then(std::function<void(const absl::Status&)> fn) {
  auto callback = std::make_unique<Callback>();
  callback->fn = std::move(fn);
  Callbacks* head = callbacks_.load(std::memory_order_acquire);
  while (head != &Callbacks::closed) {
    callback->next = head;
    if (callbacks_.compare_exchange_weak(head, callback.get(), std::memory_order_acq_rel)) {
      callback.release();  // NOLINT(bugprone-unused-return-value): the list owns it now
      return;
    }
  }
  callback->fn(status_);
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

absl::Status Work::WaitOnStream(void* stream) {
  return state_ == nullptr ? absl::OkStatus() : state_->WaitOnStream(stream);
}

}  // namespace cohort::runtime
