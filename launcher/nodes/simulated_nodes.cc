#include "cohort/launcher/nodes/simulated_nodes.h"

#include "absl/status/status.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/cuda_devices.h"
#include "cohort/launcher/machine/numa_nodes.h"
#include "cohort/launcher/machine/simulated_devices.h"
#include "cohort/launcher/nodes/share_of.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {

Detection SimulatedNodes::Detect(const Options& options) const {
  if (!options.simulate_nodes) return {false, "no --simulate-nodes"};
  return {true, "--simulate-nodes " + std::to_string(*options.simulate_nodes)};
}

absl::StatusOr<JobNodes> SimulatedNodes::Find(const Options& options) const {
  const int count = *options.simulate_nodes;
  const bool fits = !options.nodes || (options.min_nodes ? *options.min_nodes <= count && count <= *options.nodes
                                                         : *options.nodes == count);
  if (!fits) {
    return InvalidArgumentError(Remedy::kContradictingOptions, "--nnodes " + std::to_string(*options.nodes) +
                                                                   " and --simulate-nodes " + std::to_string(count) +
                                                                   " contradict each other; leave --nnodes out");
  }
  JobNodes found{.source = std::to_string(count) + " simulated node" + (count > 1 ? "s" : "") + " on this machine",
                 .spawner = SpawnerKind::kLocal,
                 .share_host = true,
                 .nodes = {}};
  std::vector<v1::Device> devices;  // of this machine; asked for by name only, since simulated nodes are for tests
  if (!options.simulate_gpus && options.gpus_per_rank.value_or(0) > 0) {
    COHORT_ASSIGN_OR_RETURN(devices, FindCudaDevices());
  }
  const std::vector<int> cpus = AvailableCpus();
  const std::vector<std::vector<int>> cores = AvailableCores();
  const std::vector<std::vector<int>> numa_nodes =
      options.bind == Bind::kNuma ? FindNumaNodes(cpus) : std::vector<std::vector<int>>();
  for (int i = 0; i < count; ++i) {
    const std::vector<int> own = ShareOf(cpus, i, count);
    found.nodes.push_back(
        {.name = "node" + std::to_string(i),
         .devices = options.simulate_gpus ? SimulatedDevices(*options.simulate_gpus) : ShareOf(devices, i, count),
         .cpus = own,
         .cores = Restrict(cores, own),
         .numa_nodes = Restrict(numa_nodes, own)});
  }
  return found;
}

}  // namespace cohort::launcher
