#include "comm/operation.h"

#include <utility>

namespace cohort::comm {

void Operation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status) {
  black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  Complete(std::move(status));
  DropReference();
}

// The engine is alive as long as an operation is pending: its group finishes all of them before it goes.
void Operation::Wait(runtime::Deadline deadline) {
  if (done()) return;
  pool_->engine_->DriveUntil([this] { return done(); }, deadline);
}

void Operation::Recycle() { pool_->Return(this); }

Operation* OperationPool::Take() {
  if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  Operation* operation = free_;
  if (operation != nullptr) {
    free_ = operation->next;
    operation->Reset();
  } else {
    operation = new Operation(this);
  }
  references_.fetch_add(1, std::memory_order_relaxed);
  operation->AddReference();
  return operation;
}

void OperationPool::Return(Operation* operation) {
  operation->next = returned_.load(std::memory_order_relaxed);
  while (!returned_.compare_exchange_weak(operation->next, operation, std::memory_order_release,
                                          std::memory_order_relaxed)) {
  }
  DropReference();
}

void OperationPool::DropReference() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

OperationPool::~OperationPool() {
  for (Operation* list : {free_, returned_.load(std::memory_order_acquire)}) {
    while (list != nullptr) delete std::exchange(list, list->next);
  }
}

}  // namespace cohort::comm
