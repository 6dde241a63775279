// Compiled instead of the provider where NCCL's or CUDA's headers were absent.
#include "absl/status/status.h"
#include "cohort/comm/nccl/nccl_provider.h"

namespace cohort::comm {

absl::StatusOr<std::unique_ptr<Provider>> MakeNcclProvider(const GroupContext*, const NcclOptions&) {
  return absl::UnimplementedError(
      "calls on CUDA memory need NCCL, which this build does not have: install the CUDA toolkit and libnccl-dev and "
      "build again with COHORT_WITH_NCCL=ON, or copy to host memory first");
}

}  // namespace cohort::comm
