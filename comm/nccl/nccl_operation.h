// The state of one NCCL call under way: done when the event that was recorded behind it has completed.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/cuda/cuda_api.h"
#include "comm/provider.h"
#include "runtime/base/mutex.h"
#include "runtime/engine.h"
#include "runtime/work.h"

namespace cohort::comm::nccl {

class NcclOperation;

// Recycles operations with their events; outlives the provider while works are still held.
class NcclOperationPool : public std::enable_shared_from_this<NcclOperationPool> {
 public:
  NcclOperationPool(const cuda::CudaApi* cuda, runtime::Engine* engine) : cuda_(cuda), engine_(engine) {}
  ~NcclOperationPool();

  // One reference, which Finish drops. The device must be current. kInternal when CUDA has no more events.
  absl::StatusOr<NcclOperation*> Take();

 private:
  friend class NcclOperation;
  void Return(NcclOperation* operation);

  const cuda::CudaApi* const cuda_;
  runtime::Engine* const engine_;
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

  // Ends the operation: black box, Work, and the reference that Take gave.
  void Finish(absl::Status status);

 private:
  friend class NcclOperationPool;
  void Wait(runtime::Deadline deadline) override;
  absl::Status WaitOnStream(void* stream) override;
  void Recycle() override;

  const cuda::CudaApi* const cuda_;
  std::shared_ptr<NcclOperationPool> pool_;  // while it is handed out
  runtime::BlackBoxWriter* black_box_ = nullptr;
  friend class NcclProvider;
};

}  // namespace cohort::comm::nccl
