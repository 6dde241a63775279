#include "cohort/comm/cuda/reduction_kernels.h"

#include <algorithm>
#include <cstddef>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::cuda {

// The generated source file defines these.
extern const unsigned char kKernelImage[];
extern const std::size_t kKernelImageBytes;

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksPerProcessor = 8;  // 2,048 threads, the most that a processor holds

DataType Unsigned(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return DataType::kUint8;
    case DataType::kInt16:
      return DataType::kUint16;
    case DataType::kInt32:
      return DataType::kUint32;
    case DataType::kInt64:
      return DataType::kUint64;
    default:
      return dtype;
  }
}

std::string PrepareName(DataType dtype, ReduceOp) { return "cohort_prepare_" + std::string(Name(dtype)); }
std::string FinishName(DataType dtype, ReduceOp) {
  return IsSmallFloat(dtype) ? "cohort_finish_" + std::string(Name(dtype)) : "";
}
std::string SearchName(DataType dtype, ReduceOp) {
  return IsFloat(dtype) ? "cohort_search_" + std::string(Name(dtype)) : "";
}

}  // namespace

std::string FoldKernelName(DataType dtype, ReduceOp op) {
  if (SizeOf(dtype) == 0 || op == ReduceOp::kUser || (IsFloat(dtype) && IsBitwise(op))) return "";
  if (op == ReduceOp::kPreMulSum) op = ReduceOp::kSum;
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax || op == ReduceOp::kAvg;
  if (!ordered) dtype = Unsigned(dtype);
  return "cohort_fold_" + std::string(Name(dtype)) + "_" + std::string(Name(op));
}

absl::StatusOr<std::unique_ptr<ReductionKernels>> ReductionKernels::Load(const CudaApi* api) {
  if (kKernelImageBytes == 0) {
    return absl::UnimplementedError("this build has no kernels for CUDA devices: build it where nvcc is installed");
  }
  if (api->cuModuleLoadData == nullptr || api->cuModuleGetFunction == nullptr || api->cuLaunchKernel == nullptr) {
    return absl::UnimplementedError("CUDA's driver (libcuda.so.1) can't be loaded; install the NVIDIA driver");
  }
  std::unique_ptr<ReductionKernels> kernels(new ReductionKernels(api));
  CUmodule module = nullptr;
  if (const CUresult error = api->cuModuleLoadData(&module, kKernelImage); error != CUDA_SUCCESS) {
    return absl::UnavailableError("CUDA's driver does not take the reduction kernels (error " + std::to_string(error) +
                                  "): build with COHORT_NVCC_ARCHITECTURES of this device, or install a newer driver");
  }
  kernels->module_ = module;
  int device = 0, processors = 1;
  COHORT_RETURN_IF_ERROR(api->ToStatus(api->cudaGetDevice(&device), "asking for the device"));
  COHORT_RETURN_IF_ERROR(api->ToStatus(api->cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                                       "asking for its processors"));
  kernels->most_blocks_ = kBlocksPerProcessor * static_cast<unsigned>(std::max(processors, 1));
  return kernels;
}

// The device is current, or gone with its memory.
ReductionKernels::~ReductionKernels() {
  if (module_ != nullptr && api_.cuModuleUnload != nullptr) (void)api_.cuModuleUnload(static_cast<CUmodule>(module_));
}

absl::Status ReductionKernels::Launch(void*& function, std::string (*name)(DataType, ReduceOp), DataType dtype,
                                      ReduceOp op, void* arguments, uint64_t pieces, cudaStream_t stream) {
  if (function == nullptr) [[unlikely]] {
    const std::string wanted = name(dtype, op);
    if (wanted.empty()) {
      return absl::InvalidArgumentError("no reduction kernel for " + std::string(Name(dtype)) + " and " +
                                        std::string(Name(op)));
    }
    const RelaxedCapture relaxed(api_);
    CUfunction found = nullptr;
    if (const CUresult error = api_.cuModuleGetFunction(&found, static_cast<CUmodule>(module_), wanted.c_str());
        error != CUDA_SUCCESS) {
      return absl::InternalError("CUDA's driver does not find " + wanted + " (error " + std::to_string(error) + ")");
    }
    function = found;
  }
  if (pieces == 0) return absl::OkStatus();
  const uint64_t blocks = std::min<uint64_t>((pieces + kThreads - 1) / kThreads, most_blocks_);
  void* parameters[] = {arguments};
  const CUresult error = api_.cuLaunchKernel(static_cast<CUfunction>(function), static_cast<unsigned>(blocks), 1, 1,
                                             kThreads, 1, 1, 0, stream, parameters, nullptr);
  if (error == CUDA_SUCCESS) [[likely]]
    return absl::OkStatus();
  return absl::InternalError("launching a reduction kernel: CUDA's driver says error " + std::to_string(error));
}

absl::Status ReductionKernels::Fold(DataType dtype, ReduceOp op, const FoldArguments& arguments, cudaStream_t stream) {
  FoldArguments copy = arguments;
  const uint64_t pieces = (arguments.count * SizeOf(dtype) + kPieceBytes - 1) / kPieceBytes;
  return Launch(folds_[static_cast<size_t>(dtype)][static_cast<size_t>(op)], &FoldKernelName, dtype, op, &copy, pieces,
                stream);
}

absl::Status ReductionKernels::Prepare(DataType dtype, const ConvertArguments& arguments, cudaStream_t stream) {
  ConvertArguments copy = arguments;
  return Launch(prepare_[static_cast<size_t>(dtype)], &PrepareName, dtype, ReduceOp::kSum, &copy, arguments.count,
                stream);
}

absl::Status ReductionKernels::Finish(DataType dtype, const ConvertArguments& arguments, cudaStream_t stream) {
  ConvertArguments copy = arguments;
  return Launch(finish_[static_cast<size_t>(dtype)], &FinishName, dtype, ReduceOp::kSum, &copy, arguments.count,
                stream);
}

absl::Status ReductionKernels::Search(DataType dtype, const SearchArguments& arguments, cudaStream_t stream) {
  SearchArguments copy = arguments;
  return Launch(search_[static_cast<size_t>(dtype)], &SearchName, dtype, ReduceOp::kSum, &copy, arguments.count,
                stream);
}

}  // namespace cohort::comm::cuda
