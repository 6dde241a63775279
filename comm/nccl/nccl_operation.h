// The state of one NCCL call under way: done when the event that was recorded behind it has completed.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/cuda/cuda_api.h"
#include "comm/provider.h"
#include "runtime/base/mutex.h"
#include "runtime/engine.h"
#include "runtime/segment/black_box.h"
#include "runtime/work.h"

namespace cohort::comm::nccl {

class NcclOperation;

// Recycles operations with their events, which belong to one device; outlives the provider while works are still held.
class NcclOperationPool : public std::enable_shared_from_this<NcclOperationPool> {
 public:
  // `source` makes the operations' progress; it and the engine outlive what is pending.
  NcclOperationPool(const cuda::CudaApi* cuda, runtime::Engine* engine, runtime::ProgressSource* source)
      : cuda_(cuda), engine_(engine), source_(source) {}
  ~NcclOperationPool();

  // Two references: one that Finish drops and the caller's. The device must be current. kInternal when CUDA has no more
  // events.
  absl::StatusOr<NcclOperation*> Take();

 private:
  friend class NcclOperation;
  void Return(NcclOperation* operation);

  const cuda::CudaApi* const cuda_;
  runtime::Engine* const engine_;
  runtime::ProgressSource* const source_;
  runtime::Mutex mutex_;
  std::vector<NcclOperation*> free_ COHORT_GUARDED_BY(mutex_);
};

class NcclOperation final : public runtime::WorkState {
 public:
  explicit NcclOperation(const cuda::CudaApi* cuda) : cuda_(cuda) {}
  ~NcclOperation() override;

  AcceptedCall call;
  cudaEvent_t event = nullptr;
  std::chrono::steady_clock::time_point started;
  bool captured = false;  // into a graph: the event can be waited for on streams only
  bool armed = false;     // its completion will wake the engine
  NcclOperation* next = nullptr;

  // Ends the operation: black box, Work, and the reference that Take gave.
  void Finish(runtime::BlackBoxWriter& black_box, absl::Status status);

 private:
  friend class NcclOperationPool;
  void Wait(runtime::Deadline deadline) override;
  absl::Status WaitOnStream(void* stream) override;
  void Recycle() override;

  const cuda::CudaApi* const cuda_;
  std::shared_ptr<NcclOperationPool> pool_;  // while it is handed out
};

// First in, first out, linked through the operations.
class NcclQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  NcclOperation* front() const { return head_; }
  void push(NcclOperation* operation) {
    operation->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = operation;
    tail_ = operation;
  }
  NcclOperation* pop() {
    NcclOperation* operation = head_;
    head_ = operation->next;
    return operation;
  }

 private:
  NcclOperation* head_ = nullptr;
  NcclOperation* tail_ = nullptr;
};

}  // namespace cohort::comm::nccl
