#include "cohort/comm/cuda/device.h"

#include "absl/status/status.h"
#include "cohort/comm/cuda/cuda_api.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::cuda {

absl::StatusOr<int> DeviceCount(const std::string& library) {
  COHORT_ASSIGN_OR_RETURN(const CudaApi* api, LoadCuda(library));
  int count = 0;  // left alone by some errors
  const cudaError_t error = api->cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)api->cudaGetLastError();  // or it would be reported again by the next call
    return absl::UnavailableError(std::string("no CUDA device: ") + api->cudaGetErrorString(error) +
                                  "; install the NVIDIA driver, or use host memory");
  }
  if (count <= 0) return absl::UnavailableError("no CUDA device is visible; see CUDA_VISIBLE_DEVICES");
  return count;
}

}  // namespace cohort::comm::cuda
