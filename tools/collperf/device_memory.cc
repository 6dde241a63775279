#include "tools/collperf/device_memory.h"

#include <algorithm>

#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/comm/cuda/device.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::collperf {
namespace {

absl::Status Refusal(const std::string& why) { return absl::UnimplementedError("--memory cuda: " + why); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const std::string& library, int ordinal, int local_rank) {
  const absl::StatusOr<int> devices = comm::cuda::DeviceCount(library);
  if (!devices.ok()) return Refusal(std::string(devices.status().message()));
  COHORT_ASSIGN_OR_RETURN(const comm::cuda::CudaApi* api, comm::cuda::LoadCuda(library));
  if (ordinal < 0) ordinal = local_rank % *devices;
  if (ordinal >= *devices) {
    return Refusal("this rank's device is " + std::to_string(ordinal) + ", but the process sees " +
                   std::to_string(*devices) + "; see CUDA_VISIBLE_DEVICES");
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, ordinal));
  const std::string doing = "using device " + std::to_string(ordinal);
  absl::Status status = api->ToStatus(api->cudaSetDevice(ordinal), doing);
  cudaStream_t stream = nullptr;
  // It makes the device's context, too, where cudaSetDevice has not: an unusable device shows here.
  if (status.ok()) status = api->ToStatus(api->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), doing);
  if (!status.ok()) {
    return Refusal(std::string(status.message()) +
                   "; see nvidia-smi for the device's mode and its other processes, or choose another one by "
                   "CUDA_VISIBLE_DEVICES");
  }
  device->stream_ = stream;
  return device;
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr && !abandoned_) (void)api_->cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

absl::StatusOr<char*> CudaDevice::Allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = api_->cudaMalloc(&memory, std::max<size_t>(bytes, 1));
  if (error != cudaSuccess) (void)api_->cudaGetLastError();  // or the next call would report it again
  COHORT_RETURN_IF_ERROR(api_->ToStatus(error, "allocating " + std::to_string(bytes) + " bytes on the device"));
  return static_cast<char*>(memory);
}

void CudaDevice::Free(char* memory) {
  if (!abandoned_) (void)api_->cudaFree(memory);
}

absl::Status CudaDevice::CopyToDevice(char* to, const char* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(stream_);
  const std::string doing = "copying to the device";
  COHORT_RETURN_IF_ERROR(api_->ToStatus(api_->cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), doing));
  return api_->ToStatus(api_->cudaStreamSynchronize(stream), doing);
}

absl::Status CudaDevice::CopyToHost(char* to, const char* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(stream_);
  const std::string doing = "copying from the device";
  COHORT_RETURN_IF_ERROR(api_->ToStatus(api_->cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), doing));
  return api_->ToStatus(api_->cudaStreamSynchronize(stream), doing);
}

}  // namespace cohort::collperf
