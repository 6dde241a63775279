// Reductions on a CUDA device, by kernels that the library carries: for what NCCL does not compute. Their results are
// those of comm/reduce's kernels, bit for bit but for the payload of NaNs. And the search for what is not finite.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/reduce_body.h"
#include "cohort/comm/cuda/search_body.h"
#include "cohort/comm/types.h"

namespace cohort::comm::cuda {

// The kernels of one device. One thread at a time; the device is current in every call. Nothing here waits for the
// device. All memory is the device's, counts are in elements, and lifetimes those of CUDA: until the stream has run it.
class ReductionKernels {
 public:
  // Loads them for the current device; `api` outlives them. kUnimplemented: built without nvcc, or the driver is too
  // old; kUnavailable: the driver refuses them. Allocates and may compile, for seconds where the device is newer than
  // the build: not while the thread captures a graph.
  static absl::StatusOr<std::unique_ptr<ReductionKernels>> Load(const CudaApi* api);
  ~ReductionKernels();
  ReductionKernels(const ReductionKernels&) = delete;
  ReductionKernels& operator=(const ReductionKernels&) = delete;

  // The operands combined from the left; kAvg also divides by their number, and kPreMulSum is a sum. Operands may not
  // overlap the output, unless they are the same memory. kInvalidArgument: the type has no such op.
  absl::Status Fold(DataType dtype, ReduceOp op, const FoldArguments& arguments, cudaStream_t stream);
  // to[i] = from[i] * factor, from `dtype` to the type that it is computed in (comm/reduce/reduce.h).
  absl::Status Prepare(DataType dtype, const ConvertArguments& arguments, cudaStream_t stream);
  // to[i] = from[i], back and rounded. Smaller floating-point types only.
  absl::Status Finish(DataType dtype, const ConvertArguments& arguments, cudaStream_t stream);
  // Adds to *arguments.found what is not finite. Floating-point types only.
  absl::Status Search(DataType dtype, const SearchArguments& arguments, cudaStream_t stream);

 private:
  explicit ReductionKernels(const CudaApi* api) : api_(*api) {}
  absl::Status Launch(void*& function, std::string (*name)(DataType, ReduceOp), DataType dtype, ReduceOp op,
                      void* arguments, uint64_t pieces, cudaStream_t stream);

  const CudaApi& api_;
  void* module_ = nullptr;
  unsigned most_blocks_ = 1;
  // By what they do, looked up when first used: folds by type and op, the others by type.
  std::array<std::array<void*, kReduceOps>, kDataTypes> folds_{};
  std::array<void*, kDataTypes> prepare_{};
  std::array<void*, kDataTypes> finish_{};
  std::array<void*, kDataTypes> search_{};
};

// "cohort_fold_uint16_sum": the kernel for a type and op; empty where there is none.
std::string FoldKernelName(DataType dtype, ReduceOp op);

}  // namespace cohort::comm::cuda
