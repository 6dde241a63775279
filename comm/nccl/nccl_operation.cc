#include "cohort/comm/nccl/nccl_operation.h"

#include <utility>

namespace cohort::comm::nccl {

NcclOperation::~NcclOperation() {
  if (event != nullptr) cuda_->cudaEventDestroy(event);
}

absl::Status NcclOperation::Begin(const cuda::CudaApi* cuda) {
  cuda_ = cuda;
  captured = armed = false;
  if (event != nullptr) [[likely]]
    return absl::OkStatus();
  const cudaError_t error = cuda->cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) event = nullptr;
  return cuda->ToStatus(error, "making an event");
}

void NcclOperation::Finish(runtime::BlackBoxWriter& black_box, absl::Status status) {
  black_box.Finish(call.ticket, status.ok() ? runtime::CallState::kDone : runtime::CallState::kFailed);
  CompleteAndDrop(std::move(status));
}

absl::Status NcclOperation::WaitOnStream(void* stream) {
  if (done() && (!captured || !status().ok())) return status();
  return cuda_->ToStatus(cuda_->cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0),
                         "making a stream wait for a collective");
}

}  // namespace cohort::comm::nccl
