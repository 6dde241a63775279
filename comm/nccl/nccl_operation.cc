#include "comm/nccl/nccl_operation.h"

#include <algorithm>
#include <utility>

#include "runtime/segment/black_box.h"

namespace cohort::comm::nccl {
namespace {

// No event of the device wakes a sleeping engine, so a waiter looks again this often: at first as often as kernels are
// short, later as seldom as an idle core wants.
constexpr std::chrono::microseconds kFirstSlice(50);
constexpr std::chrono::microseconds kLongestSlice(1000);

}  // namespace

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
    operation->Reset();
  } else {
    auto made = std::make_unique<NcclOperation>(cuda_);
    const cudaError_t error = cuda_->cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming);
    if (error != cudaSuccess) return cuda_->ToStatus(error, "making an event");
    operation = made.release();
  }
  operation->pool_ = shared_from_this();
  operation->AddReference();
  return operation;
}

void NcclOperationPool::Return(NcclOperation* operation) {
  const runtime::MutexLock lock(mutex_);
  free_.push_back(operation);
}

NcclOperation::~NcclOperation() {
  if (event != nullptr) cuda_->cudaEventDestroy(event);
}

void NcclOperation::Finish(absl::Status status) {
  black_box_->Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  Complete(std::move(status));
  DropReference();
}

void NcclOperation::Wait(runtime::Deadline deadline) {
  std::chrono::microseconds slice = kFirstSlice;
  while (!done() && !deadline.passed()) {
    const runtime::Deadline look = Earlier(deadline, runtime::Deadline::After(slice));
    pool_->engine_->DriveUntil([this] { return done(); }, look);
    slice = std::min(kLongestSlice, slice * 2);
  }
}

absl::Status NcclOperation::WaitOnStream(void* stream) {
  if (done()) return status();
  return cuda_->ToStatus(cuda_->cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0),
                         "making a stream wait for a collective");
}

void NcclOperation::Recycle() {
  const std::shared_ptr<NcclOperationPool> pool = std::move(pool_);
  pool->Return(this);
}

}  // namespace cohort::comm::nccl
