// The state of one host-memory operation under way, recycled: a group's steady state allocates nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/provider.h"
#include "runtime/engine.h"
#include "runtime/segment/black_box.h"
#include "runtime/work.h"

namespace cohort::comm {

class OperationPool;

class Operation final : public runtime::WorkState {
 public:
  AcceptedCall call;
  uint64_t signature = 0;    // what its messages carry
  uint64_t deadline_ns = 0;  // steady clock
  Operation* next = nullptr;

  // Ends the operation: the black box, the Work, and the reference that Take gave. The object may be gone afterwards.
  void Finish(runtime::BlackBoxWriter& black_box, absl::Status status);

 private:
  friend class OperationPool;
  explicit Operation(OperationPool* pool) : pool_(pool) {}
  void Wait(runtime::Deadline deadline) override;
  void Recycle() override;

  OperationPool* const pool_;
};

// Hands out operations to one owner; they come back from any thread. Outlives its owner while works are still held.
class OperationPool {
 public:
  explicit OperationPool(runtime::Engine* engine) : engine_(engine) {}
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;

  // An operation that is not done, with one reference, which Finish drops. Owner only.
  Operation* Take();
  // The owner is gone; all operations have been finished. Deletes the pool with its last operation.
  void Close() { DropReference(); }

 private:
  friend class Operation;
  ~OperationPool();
  void Return(Operation* operation);
  void DropReference();

  runtime::Engine* const engine_;
  Operation* free_ = nullptr;                  // the owner's
  std::atomic<Operation*> returned_{nullptr};  // pushed by any thread, taken whole by the owner
  std::atomic<int64_t> references_{1};         // operations handed out, and the owner
};

// A first-in, first-out list of operations, linked through them.
class OperationQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  Operation* front() const { return head_; }
  void push(Operation* operation) {
    operation->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = operation;
    tail_ = operation;
  }
  Operation* pop() {
    Operation* operation = head_;
    head_ = operation->next;
    return operation;
  }

 private:
  Operation* head_ = nullptr;
  Operation* tail_ = nullptr;
};

}  // namespace cohort::comm
