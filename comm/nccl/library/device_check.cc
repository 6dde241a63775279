#include "cohort/comm/nccl/library/device_check.h"

#include <cstddef>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "cohort/comm/check/input_check.h"
#include "cohort/comm/nccl/library/left_behind.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::nccl {

DeviceCheck::~DeviceCheck() {
  if (found_ == nullptr) return;
  const cuda::DeviceScope device(cuda_, ordinal_);
  const cuda::RelaxedCapture relaxed(cuda_);
  if (keeps_memory_ || !Ended()) {
    LeaveBehind({found_, here_});
  } else {
    (void)cuda_.cudaFree(found_);
    (void)cuda_.cudaFreeHost(here_);
  }
  if (ended_ != nullptr) (void)cuda_.cudaEventDestroy(ended_);  // CUDA lets go of it when what is before it is done
}

absl::Status DeviceCheck::Nested(CollectiveKind kind) {
  return absl::FailedPreconditionError(
      std::string(Name(kind)) +
      " comes from inside another call of the group, whose input --check nan looks at: wait for the first call before "
      "anything that calls back makes others");
}

absl::Status DeviceCheck::CheckPossible(const CollectiveRequest& request, int size, const cuda::CudaApi& cuda,
                                        NcclPool& pool) {
  const int inputs =
      BlocksOf(request.kind, /*is_root=*/true, size).in + BlocksOf(request.kind, /*is_root=*/false, size).in;
  if (!IsFloat(request.dtype) || inputs == 0) return absl::OkStatus();
  const cuda::DeviceScope device(cuda, request.device);
  COHORT_RETURN_IF_ERROR(device.status());
  const cuda::RelaxedCapture relaxed(cuda);
  if (pool.KernelsOf(cuda, request.device) != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(std::string(Name(request.kind)) +
                                  " on CUDA memory can't be checked: --check nan needs Cohort's kernels for CUDA "
                                  "devices, which this build lacks (nvcc) or the driver refuses: run without it");
}

// Another thread may capture a graph meanwhile.
absl::Status DeviceCheck::Prepare() {
  if (ended_ != nullptr) return absl::OkStatus();
  const cuda::RelaxedCapture relaxed(cuda_);
  if (found_ == nullptr) {
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaMalloc(reinterpret_cast<void**>(&found_), sizeof(cuda::Found))));
  }
  if (here_ == nullptr) {
    COHORT_RETURN_IF_ERROR(
        Cuda(cuda_.cudaHostAlloc(reinterpret_cast<void**>(&here_), sizeof(cuda::Found), cudaHostAllocDefault)));
  }
  return Cuda(cuda_.cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming));
}

absl::Status DeviceCheck::Run(const AcceptedCall& call, bool captured, const DriveOn& drive_on,
                              runtime::Deadline deadline) {
  if (!IsFloat(call.request.dtype) || call.request.in == nullptr) return absl::OkStatus();
  if (captured) {
    return absl::UnimplementedError(std::string(Name(call.request.kind)) +
                                    " is being captured into a CUDA graph, and --check nan looks at an input before "
                                    "the call: run without graphs, or without the check");
  }
  COHORT_RETURN_IF_ERROR(Prepare());
  running_ = true;
  const absl::Cleanup over = [this] { running_ = false; };
  return Search(call, *pool_.KernelsOf(cuda_, ordinal_), drive_on, deadline);
}

absl::Status DeviceCheck::Search(const AcceptedCall& call, cuda::ReductionKernels& kernels, const DriveOn& drive_on,
                                 runtime::Deadline deadline) {
  const CollectiveRequest& request = call.request;
  const auto stream = static_cast<cudaStream_t>(call.stream);
  return LookAtInput(group_, request, [&](const InputBlock& block) -> absl::Status {
    if (block.count == 0) return absl::OkStatus();
    const std::byte* const data = static_cast<const std::byte*>(request.in) + block.place * SizeOf(request.dtype);
    *here_ = cuda::Found();
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaMemcpyAsync(found_, here_, sizeof *here_, cudaMemcpyHostToDevice, stream)));
    COHORT_RETURN_IF_ERROR(kernels.Search(request.dtype, {data, block.count, found_}, stream));
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaMemcpyAsync(here_, found_, sizeof *here_, cudaMemcpyDeviceToHost, stream)));
    COHORT_RETURN_IF_ERROR(Cuda(cuda_.cudaEventRecord(ended_, stream)));
    COHORT_RETURN_IF_ERROR(Await(drive_on, deadline));
    if (here_->nans + here_->infinities == 0) return absl::OkStatus();
    const NonFinite found = {.first = static_cast<size_t>(here_->first / 2),
                             .first_is_nan = here_->first % 2 == 0,
                             .nans = static_cast<size_t>(here_->nans),
                             .infinities = static_cast<size_t>(here_->infinities)};
    return NotFinite(group_, request, request.in, call.record, block, found);
  });
}

bool DeviceCheck::Ended() {
  if (ended_ == nullptr) return true;  // no search has begun
  const cuda::RelaxedCapture relaxed(cuda_);
  return cuda_.cudaEventQuery(ended_) != cudaErrorNotReady;
}

absl::Status DeviceCheck::Await(const DriveOn& drive_on, runtime::Deadline deadline) {
  // Nobody wakes the engine: the check slows calls down by far more.
  while (!Ended()) {
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          "--check nan waited for the stream of the call, on which earlier work did not end in the call's time");
    }
    COHORT_RETURN_IF_ERROR(drive_on(deadline, "searching an input for NaN"));
  }
  const cuda::RelaxedCapture relaxed(cuda_);
  return Cuda(cuda_.cudaEventQuery(ended_));
}

}  // namespace cohort::comm::nccl
