#include "cohort/launcher/agent/mpi/pmix/pmix_endpoint.h"

namespace cohort::launcher {

void PreparePmixEnvironment() {}

absl::StatusOr<std::unique_ptr<PmixEndpoint>> StartPmixEndpoint(const PmixEndpoint::Job&, PmixEndpoint::Handler) {
  return absl::UnimplementedError(
      "this dlaunch was built without PMIx, which Open MPI's ranks need: build it where OpenPMIx's headers are "
      "installed "
      "(libpmix-dev), start the program with Open MPI's mpirun, or build it with MPICH");
}

}  // namespace cohort::launcher
