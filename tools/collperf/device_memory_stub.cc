// Compiled instead of device_memory.cc where CUDA's headers were absent: no device is ever opened.
#include "cohort/comm/cuda/device.h"
#include "tools/collperf/device_memory.h"

namespace cohort::collperf {

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const std::string& library, int, int) {
  return absl::UnimplementedError("--memory cuda: " + std::string(comm::cuda::DeviceCount(library).status().message()));
}

CudaDevice::~CudaDevice() = default;
absl::StatusOr<char*> CudaDevice::Allocate(size_t) { return absl::UnimplementedError("no CUDA"); }
void CudaDevice::Free(char*) {}
absl::Status CudaDevice::CopyToDevice(char*, const char*, size_t) { return absl::UnimplementedError("no CUDA"); }
absl::Status CudaDevice::CopyToHost(char*, const char*, size_t) { return absl::UnimplementedError("no CUDA"); }

}  // namespace cohort::collperf
