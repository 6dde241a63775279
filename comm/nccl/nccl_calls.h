// From a CollectiveRequest to NCCL's calls.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/nccl/library/nccl_api.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/request.h"

namespace cohort::comm::nccl {

// Why NCCL can't do this: "NCCL does not reduce int16"; empty where it can. Equal on all members.
std::string WhyNotNccl(const CollectiveRequest& request, const Abilities& abilities);

struct CallTarget {
  const NcclApi* nccl;
  const cuda::CudaApi* cuda;
  ncclComm_t communicator;
  cudaStream_t stream;  // of the call; set by Enqueue
  int rank;
  int size;
  void* barrier_scratch;  // device memory, 8 bytes
  // Device memory that is to be freed, on these streams, when NCCL has put the launch on them.
  std::vector<std::pair<void*, cudaStream_t>>* temporaries;
};

// Puts the call on its stream. ncclInProgress: NCCL still does so, in a thread of its own.
absl::StatusOr<ncclResult_t> Enqueue(CallTarget target, const AcceptedCall& call);
// Several calls as one launch (ncclGroupStart, ncclGroupEnd): those on one stream run beside each other.
absl::StatusOr<ncclResult_t> EnqueueBatch(CallTarget target, std::span<const AcceptedCall> calls);

}  // namespace cohort::comm::nccl
