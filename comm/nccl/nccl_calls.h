// From a CollectiveRequest to NCCL's calls.
#pragma once

#include "absl/status/status.h"
#include "comm/cuda/cuda_api.h"
#include "comm/nccl/nccl_api.h"
#include "comm/request.h"

namespace cohort::comm::nccl {

// Whether NCCL can do this; kUnimplemented with the remedy. Equal on all members.
absl::Status CheckSupported(const CollectiveRequest& request);

struct CallTarget {
  const NcclApi* nccl;
  const cuda::CudaApi* cuda;
  ncclComm_t communicator;
  cudaStream_t stream;
  int rank;
  int size;
  void* barrier_scratch;  // device memory, 8 bytes
};

// Puts the call on the stream. NCCL may still be setting it up when this returns.
absl::Status Enqueue(const CallTarget& target, const CollectiveRequest& request);

// The same for a group of one: a copy on the device.
absl::Status CopyAlone(const cuda::CudaApi& cuda, const CollectiveRequest& request, cudaStream_t stream);

}  // namespace cohort::comm::nccl
