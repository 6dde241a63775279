#include "launcher/environment/node_source.h"

#include "absl/status/status.h"
#include "launcher/environment/simulated_nodes.h"
#include "launcher/environment/ssh_hosts.h"
#include "launcher/environment/this_machine.h"

namespace cohort::launcher {

absl::StatusOr<JobNodes> FindNodes(const Options& options) {
#define COHORT_ENVIRONMENT(Source)                    \
  if (const Source source; source.Applies(options)) { \
    return source.Find(options);                      \
  }
#include "launcher/environment/environments.def"
#undef COHORT_ENVIRONMENT
  return absl::InvalidArgumentError("there are no nodes to run on; use --nnodes 1 or --simulate-nodes");
}

}  // namespace cohort::launcher
