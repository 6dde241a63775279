// Compiled instead of device.cc where CUDA's headers were absent.
#include "absl/status/status.h"
#include "cohort/comm/cuda/device.h"

namespace cohort::comm::cuda {

absl::StatusOr<int> DeviceCount(const std::string&) {
  return absl::UnimplementedError(
      "this build has no CUDA: install the CUDA toolkit's headers and build again with COHORT_WITH_CUDA=ON");
}

}  // namespace cohort::comm::cuda
