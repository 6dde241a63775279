#include "cohort/launcher/nodes/this_machine.h"

#include "absl/status/status.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/cuda_devices.h"
#include "cohort/launcher/machine/numa_nodes.h"
#include "cohort/launcher/machine/simulated_devices.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

absl::StatusOr<JobNodes> ThisMachine::Find(const Options& options) const {
  const int wanted = options.min_nodes.value_or(options.nodes.value_or(1));
  if (wanted > 1) {
    const std::string most = options.min_nodes ? ":" + std::to_string(*options.nodes) : "";
    return InvalidArgumentError(
        Remedy::kOneNodeHere,
        "--nnodes " + std::to_string(wanted) + most +
            ": there is one node here, this machine; name others with --hosts; for others to join by themselves, add "
            "--wait 600 and paste the line that it prints there; to let it stand for " +
            std::to_string(wanted) + ", add --simulate-nodes " + std::to_string(wanted) +
            "; for more ranks on it, use --nproc-per-node");
  }
  JobNodes found{.source = "this machine", .spawner = SpawnerKind::kLocal, .share_host = false, .nodes = {}};
  NodeResources node{.name = HostName(), .devices = {}, .cpus = AvailableCpus(), .cores = AvailableCores()};
  if (options.bind == Bind::kNuma) node.numa_nodes = FindNumaNodes(node.cpus);
  if (options.simulate_gpus) {
    node.devices = SimulatedDevices(*options.simulate_gpus);
  } else {
    COHORT_ASSIGN_OR_RETURN(node.devices, FindCudaDevices());
  }
  found.nodes.push_back(std::move(node));
  return found;
}

}  // namespace cohort::launcher
