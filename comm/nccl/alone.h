// The calls of a group of one rank, which needs no NCCL: a copy on the device, or a kernel of comm/cuda.
#pragma once

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/reduction_kernels.h"
#include "cohort/comm/request.h"

namespace cohort::comm::nccl {

// Whether the result is the input times CallOptions::factor. Else it is the input.
inline bool Scales(const CollectiveRequest& request) {
  return Reduces(request.kind) && request.op == ReduceOp::kPreMulSum;
}

// Puts the call on the stream, with its device being current. kInvalidArgument: sends and receives, which have no peer.
absl::Status CopyAlone(const cuda::CudaApi& cuda, const CollectiveRequest& request, cudaStream_t stream);
// The same for a call that scales: rounded once, as comm/reduce does it. Where that is done in a wider type it takes
// temporary device memory for the whole block. `kernels` are those of the device.
absl::Status ScaleAlone(const cuda::CudaApi& cuda, cuda::ReductionKernels& kernels, const CollectiveRequest& request,
                        cudaStream_t stream);

}  // namespace cohort::comm::nccl
