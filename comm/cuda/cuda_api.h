// The CUDA runtime as a table of functions, opened at run time: one binary runs with and without CUDA. It needs CUDA's
// headers, so only files that builds without CUDA leave out include it: in comm/cuda, comm/nccl, and tools and tests on
// device memory. device.h is for everybody.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// All of them exist since CUDA 11.2.
#define COHORT_CUDA_FUNCTIONS(F)         \
  F(cudaGetDeviceCount)                  \
  F(cudaGetDevice)                       \
  F(cudaDeviceGetAttribute)              \
  F(cudaSetDevice)                       \
  F(cudaGetErrorString)                  \
  F(cudaGetLastError)                    \
  F(cudaMalloc)                          \
  F(cudaFree)                            \
  F(cudaMallocAsync)                     \
  F(cudaFreeAsync)                       \
  F(cudaHostAlloc)                       \
  F(cudaFreeHost)                        \
  F(cudaMemcpyAsync)                     \
  F(cudaMemcpy2DAsync)                   \
  F(cudaLaunchHostFunc)                  \
  F(cudaStreamCreateWithFlags)           \
  F(cudaStreamDestroy)                   \
  F(cudaStreamSynchronize)               \
  F(cudaStreamWaitEvent)                 \
  F(cudaStreamIsCapturing)               \
  F(cudaThreadExchangeStreamCaptureMode) \
  F(cudaEventCreateWithFlags)            \
  F(cudaEventDestroy)                    \
  F(cudaEventRecord)                     \
  F(cudaEventQuery)

// Functions of the driver, libcuda. Null where it is absent.
#define COHORT_CUDA_DRIVER_FUNCTIONS(F) \
  F(cuModuleLoadData)                   \
  F(cuModuleUnload)                     \
  F(cuModuleGetFunction)                \
  F(cuLaunchKernel)

namespace cohort::comm::cuda {

struct CudaApi {
#define COHORT_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  COHORT_CUDA_FUNCTIONS(COHORT_CUDA_MEMBER)
  COHORT_CUDA_DRIVER_FUNCTIONS(COHORT_CUDA_MEMBER)
#undef COHORT_CUDA_MEMBER

  // "<doing>: an illegal memory access was encountered (CUDA)"; OK for cudaSuccess.
  absl::Status ToStatus(cudaError_t error, const std::string& doing) const;
};

// Opens libcudart: `library` if it is not empty, else a copy that the process has already loaded (libtorch's), else the
// newest installed of versions 13, 12 and 11. It stays loaded. Thread-safe; the first success is kept.
// kUnimplemented when it, or one of its functions, is missing; names it and the remedy.
absl::StatusOr<const CudaApi*> LoadCuda(const std::string& library);

// Lets this thread ask for the state of events while some thread captures a graph: without it the capture is spoiled.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& api) : api_(api) { api_.cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { api_.cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaApi& api_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Makes `device` current in this thread for a scope.
class DeviceScope {
 public:
  DeviceScope(const CudaApi& api, int device) : api_(api) {
    if (api_.cudaGetDevice(&previous_) != cudaSuccess) previous_ = -1;
    status_ = previous_ == device
                  ? absl::OkStatus()
                  : api_.ToStatus(api_.cudaSetDevice(device), "choosing device " + std::to_string(device));
    changed_ = previous_ != device && previous_ >= 0;
  }
  ~DeviceScope() {
    if (changed_) api_.cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const CudaApi& api_;
  int previous_ = -1;
  bool changed_ = false;
  absl::Status status_;
};

}  // namespace cohort::comm::cuda
