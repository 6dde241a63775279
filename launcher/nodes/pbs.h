// A PBS job (OpenPBS, PBS Pro, Torque): the hosts of its node file, reached by ssh.
#pragma once

#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

class Pbs : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // The first --nnodes hosts of PBS_NODEFILE, or all. How often a host is there is not looked at: it counts processes,
  // by the site's rules, and not what a node can run. See AskHosts.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
