// An LSF job: its hosts, reached by blaunch.
#pragma once

#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

class Lsf : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // The first --nnodes hosts of LSB_DJOB_HOSTFILE, or all. See AskHosts.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
