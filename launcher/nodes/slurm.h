// A Slurm allocation: in a batch script, under salloc, or started by srun with a task on each node.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

struct SlurmNodes {
  std::vector<HostEntry> hosts;  // in Slurm's order, which follows the network's topology; slots: the tasks there
  bool step = false;             // srun started this program as several tasks, and these are the step's nodes
  bool elsewhere = false;        // one of srun's tasks but not the first, which runs the job
};

// Reads Slurm's variables. Under srun with several tasks they name its step's nodes, otherwise the allocation's. A
// shell that srun --pty or salloc started has the allocation. kInvalidArgument: srun started more tasks than one on a
// node (with the command that works), a list that is none, or numbers of tasks that are none. Pure.
absl::StatusOr<SlurmNodes> ReadSlurmVariables(const VariableLookup& variable, bool has_terminal = true);

// "30" of the line "WaitTime = 30 sec" of what `scontrol show config` prints; empty where there is none. Pure.
std::string WaitTimeIn(const std::string& configuration);

class Slurm : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool IsScheduler() const override { return true; }
  bool RunsElsewhere(const Options& options) const override;
  // The first --nnodes nodes, or all; each agent is a job step of one task. Warns where srun would kill the
  // task that runs the job, a while after the others. See AskAllocation.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
