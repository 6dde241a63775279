// The hosts of a scheduler's allocation, reached by the scheduler's own command or by ssh.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/nodes/remote_hosts.h"

namespace cohort::launcher {

// Sets the slots of each host to the number of its lines in a node file. A number above kMaxRanksPerNode sets none.
void CountLines(const std::string& text, std::vector<HostEntry>* hosts);

struct Allocation {
  std::string name;              // "Slurm job 77"
  std::vector<HostEntry> hosts;  // slots are the allocation's tasks there; see NodeResources::tasks
  std::string own_name = "";     // by which the scheduler knows this machine, where it says so
  std::string program = "";      // that reaches its hosts, in PATH: "srun"; empty: ssh does
};

// The first --nnodes hosts, or all. See AskHosts. Where this machine is the only one, nothing has to be reached:
// without a usable `program` it starts here and says so, and with ssh it starts here always. kInvalidArgument where
// there are others and `program` is missing: as in a container, whose image lacks it.
absl::StatusOr<JobNodes> AskAllocation(const Options& options, Allocation allocation, const RemoteWay& way);

}  // namespace cohort::launcher
