#include "cohort/launcher/agent/mpi/pmix/pmix_endpoint.h"

namespace cohort::launcher {

void PreparePmixEnvironment() {}

absl::StatusOr<std::unique_ptr<PmixEndpoint>> StartPmixEndpoint(const PmixEndpoint::Job&, PmixEndpoint::Handler) {
  return absl::UnimplementedError(
      "this dlaunch was built without PMIx, which Open MPI's ranks need: build it where OpenPMIx's headers are "
      "installed (libpmix-dev); or give --mpi none, which starts each rank alone, for a program that is linked with "
      "MPI and does not use it");
}

}  // namespace cohort::launcher
