// --hosts and --hostfile: machines that ssh reaches without a password.
#pragma once

#include <string>

#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/nodes/remote_hosts.h"

namespace cohort::launcher {

class SshHosts : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // The first --nnodes hosts of the list, or all, in the order given. See AskHosts.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

// Reaching hosts by --ssh, for sources that know their names.
RemoteWay SshWay(const Options& options, const std::string& source);

}  // namespace cohort::launcher
