#include "cohort/comm/nccl/launch_turn.h"

namespace cohort::comm::nccl {

absl::Status LaunchTurn::Await(cudaStream_t stream) const {
  if (issued_.turn == nullptr || issued_.turn == this || !guards_) [[likely]]
    return absl::OkStatus();
  return cuda_.ToStatus(cuda_.cudaStreamWaitEvent(stream, issued_.event, 0), "ordering the calls of two communicators");
}

}  // namespace cohort::comm::nccl
