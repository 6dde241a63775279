#include "comm/operation.h"

#include <cstddef>
#include <utility>

namespace cohort::comm {

void Operation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status, bool at_once) {
  black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed, at_once);
  Complete(std::move(status));
  DropReference();
}

// The engine is alive as long as an operation is pending: its group finishes all of them before it goes.
void Operation::Wait(runtime::Deadline deadline) {
  if (done()) return;
  pool_->engine_->DriveUntil([this] { return done(); }, deadline, pool_->source_);
}

void Operation::Recycle() { pool_->Return(this); }

namespace {

// What `returned_` points to once the pool is closed: operations that come back are then deleted.
alignas(Operation) constinit std::byte closed_mark[1] = {};
Operation* Closed() { return reinterpret_cast<Operation*>(closed_mark); }

}  // namespace

Operation* OperationPool::Take() {
  if (free_ == nullptr) free_ = returned_.exchange(nullptr, std::memory_order_acquire);
  Operation* operation = free_;
  if (operation != nullptr) {
    free_ = operation->next;
    operation->Reset();
  } else {
    operation = new Operation(this);
    ++made_;
  }
  operation->SetReferences(2);
  return operation;
}

void OperationPool::Return(Operation* operation) {
  operation->next = returned_.load(std::memory_order_acquire);
  while (operation->next != Closed()) {
    if (returned_.compare_exchange_weak(operation->next, operation, std::memory_order_acq_rel)) return;
  }
  delete operation;
  if (held_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void OperationPool::Discard(Operation* operation) {
  operation->next = free_;
  free_ = operation;
}

void OperationPool::Close() {
  int64_t held = made_;
  for (Operation* list : {free_, returned_.exchange(Closed(), std::memory_order_acq_rel)}) {
    for (; list != nullptr; --held) delete std::exchange(list, list->next);
  }
  // Those that came back between the two steps have been counted down already.
  if (held_.fetch_add(held, std::memory_order_acq_rel) + held == 0) delete this;
}

}  // namespace cohort::comm
