#include "comm/nccl/nccl_operation.h"

#include <utility>

namespace cohort::comm::nccl {

NcclOperationPool::~NcclOperationPool() {
  for (NcclOperation* operation : free_) delete operation;
}

absl::StatusOr<NcclOperation*> NcclOperationPool::Take() {
  NcclOperation* operation = nullptr;
  {
    const runtime::MutexLock lock(mutex_);
    if (!free_.empty()) {
      operation = free_.back();
      free_.pop_back();
    }
  }
  if (operation != nullptr) {
    operation->captured = operation->armed = false;
  } else {
    auto made = std::make_unique<NcclOperation>(cuda_);
    const cudaError_t error = cuda_->cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming);
    if (error != cudaSuccess) return cuda_->ToStatus(error, "making an event");
    operation = made.release();
  }
  operation->pool_ = shared_from_this();
  operation->Reset(2);
  return operation;
}

void NcclOperationPool::Return(NcclOperation* operation) {
  const runtime::MutexLock lock(mutex_);
  free_.push_back(operation);
}

NcclOperation::~NcclOperation() {
  if (event != nullptr) cuda_->cudaEventDestroy(event);
}

void NcclOperation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status) {
  black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  CompleteAndDrop(std::move(status));
}

// The completion wakes a sleeping engine (NcclProvider::Arm).
void NcclOperation::Wait(runtime::Deadline deadline) {
  if (done()) return;
  pool_->engine_->DriveUntil([this] { return done(); }, deadline, pool_->source_);
}

absl::Status NcclOperation::WaitOnStream(void* stream) {
  if (done() && (!captured || !status().ok())) return status();
  return cuda_->ToStatus(cuda_->cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0),
                         "making a stream wait for a collective");
}

void NcclOperation::Recycle() {
  const std::shared_ptr<NcclOperationPool> pool = std::move(pool_);
  pool->Return(this);
}

}  // namespace cohort::comm::nccl
