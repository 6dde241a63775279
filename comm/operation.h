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
  uint64_t deadline_ns = 0;  // steady clock; 0: its time has not begun to be watched
  Operation* next = nullptr;

  // Ends the operation: the black box, the Work, and the reference that Take gave. The object may be gone afterwards.
  // `at_once`: it had not to wait, see BlackBoxWriter::Finish.
  void Finish(runtime::BlackBoxWriter& black_box, absl::Status status, bool at_once = false);

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
  // `source` makes the operations' progress. Both outlive what is pending.
  OperationPool(runtime::Engine* engine, runtime::ProgressSource* source) : engine_(engine), source_(source) {}
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;

  // An operation that is not done, with two references: one that Finish drops and the caller's. Owner only.
  Operation* Take();
  // Takes back an operation that was never used.
  void Discard(Operation* operation);
  // The owner is gone; all operations have been finished. Deletes the pool with its last operation.
  void Close();

 private:
  friend class Operation;
  ~OperationPool() = default;
  void Return(Operation* operation);

  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
  int64_t made_ = 0;                           // operations in all; the owner's
  Operation* free_ = nullptr;                  // the owner's
  std::atomic<Operation*> returned_{nullptr};  // pushed by any thread, taken whole by the owner
  // Once closed: operations that are still held, less those that came back since.
  std::atomic<int64_t> held_{0};
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
