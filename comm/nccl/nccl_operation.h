// The state of one NCCL call under way: done when the event that was recorded behind it has completed.
#pragma once

#include <cstdint>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/provider/state_pool.h"
#include "cohort/runtime/segment/black_box.h"

namespace cohort::comm::nccl {

class NcclOperation final : public PooledState<NcclOperation> {
 public:
  explicit NcclOperation(StatePool<NcclOperation>* pool) : PooledState(pool) {}
  ~NcclOperation();

  AcceptedCall call;
  cudaEvent_t event = nullptr;  // made once: all operations of a pool belong to one device
  uint64_t started_ns = 0;      // CoarseNow
  uint64_t deadline_ns = 0;
  bool captured = false;  // into a graph: the event can be waited for on streams only
  bool armed = false;     // its completion will wake the engine

  // Just taken from the pool. The device must be current. kInternal when CUDA has no more events.
  absl::Status Begin(const cuda::CudaApi* cuda);
  // Ends the operation: black box, Work, and the reference that the pool gave.
  void Finish(runtime::BlackBoxWriter& black_box, absl::Status status);

 private:
  absl::Status WaitOnStream(void* stream) override;

  const cuda::CudaApi* cuda_ = nullptr;
};

}  // namespace cohort::comm::nccl
