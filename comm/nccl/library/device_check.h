// --check nan on device memory: a kernel searches the input of a call on the call's own stream, before the call is put
// there.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/reduction_kernels.h"
#include "cohort/comm/nccl/library/nccl_pool.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::comm::nccl {

// The check of one device's calls. One call at a time.
class DeviceCheck {
 public:
  // Drives the engine for a moment. Not OK: the group has failed.
  using DriveOn = std::function<absl::Status(runtime::Deadline deadline, const std::string& doing)>;

  // All of them outlive it. `ordinal`: CUDA's number of the device.
  DeviceCheck(const GroupContext* group, const cuda::CudaApi* cuda, NcclPool* pool, int ordinal)
      : group_(*group), cuda_(*cuda), pool_(*pool), ordinal_(ordinal) {}
  // Frees its memory, or leaves it behind where a search never ended. May wait for kernels of the device.
  ~DeviceCheck();
  DeviceCheck(const DeviceCheck&) = delete;
  DeviceCheck& operator=(const DeviceCheck&) = delete;

  // The refusal of a call whose input has to be searched and can't be, for whatever rank gives one: this build or
  // driver has no kernels for request.device. Loads them if need be. With engine ownership.
  static absl::Status CheckPossible(const CollectiveRequest& request, int size, const cuda::CudaApi& cuda,
                                    NcclPool& pool);
  // kDataLoss where the input that this rank gives to the call is not finite, in the words of CheckInput. Waits for the
  // stream, driving the engine meanwhile; the device is current. The call is possible. kUnimplemented: the stream is
  // being captured into a graph, which nobody can wait for. kDeadlineExceeded: earlier work on the stream did not end
  // in time.
  absl::Status Run(const AcceptedCall& call, bool captured, const DriveOn& drive_on, runtime::Deadline deadline);
  // The refusal of a call that comes from inside of another one's check: their order would differ between members.
  static absl::Status Nested(CollectiveKind kind);
  // A kernel on the device may never end: the memory, which CUDA frees only behind all kernels, is left behind.
  void KeepMemory() { keeps_memory_ = true; }
  // Run is under way further up this thread's stack: it drives the engine, and the engine has called us.
  bool running() const { return running_; }

 private:
  absl::Status Prepare();
  absl::Status Search(const AcceptedCall& call, cuda::ReductionKernels& kernels, const DriveOn& drive_on,
                      runtime::Deadline deadline);
  absl::Status Await(const DriveOn& drive_on, runtime::Deadline deadline);
  bool Ended();
  absl::Status Cuda(cudaError_t error) const { return cuda_.ToStatus(error, "searching an input for NaN"); }

  const GroupContext& group_;
  const cuda::CudaApi& cuda_;
  NcclPool& pool_;
  const int ordinal_;
  bool running_ = false;
  bool keeps_memory_ = false;
  cuda::Found* found_ = nullptr;  // in device memory
  cuda::Found* here_ = nullptr;   // its copy in pinned host memory
  cudaEvent_t ended_ = nullptr;
};

}  // namespace cohort::comm::nccl
