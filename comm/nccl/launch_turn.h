// One communicator's part in the launch-order guard of a device (launch_order.h).
#pragma once

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/library/nccl_pool.h"

namespace cohort::comm::nccl {

// Used with engine ownership.
class LaunchTurn {
 public:
  // `cuda` and `pool` outlive it. `ordinal`: CUDA's number of the device. `guards`: GuardsOrder.
  LaunchTurn(const cuda::CudaApi* cuda, NcclPool* pool, int ordinal, bool guards)
      : cuda_(*cuda), issued_(pool->issued(ordinal)), guards_(guards) {}
  ~LaunchTurn() { Forget(); }
  LaunchTurn(const LaunchTurn&) = delete;
  LaunchTurn& operator=(const LaunchTurn&) = delete;

  // Before a call is launched: its stream waits for the device's last call of another communicator.
  absl::Status Await(cudaStream_t stream) const;
  // Afterwards: the call whose end `event` tells was the device's last one.
  void NoteIssued(cudaEvent_t event) { issued_ = {this, event}; }
  // The call of `event` is over: nobody need wait for it.
  void Forget(cudaEvent_t event) {
    if (issued_.event == event) issued_ = {};
  }
  // Nobody waits for this communicator's calls any more: it has failed, or goes.
  void Forget() {
    if (issued_.turn == this) issued_ = {};
  }

 private:
  const cuda::CudaApi& cuda_;
  NcclPool::Issued& issued_;
  const bool guards_;
};

}  // namespace cohort::comm::nccl
