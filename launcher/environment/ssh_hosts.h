// --hosts and --hostfile: machines that ssh reaches without a password. Each is asked, 64 at a time, what it has.
#pragma once

#include "launcher/environment/node_source.h"

namespace cohort::launcher {

class SshHosts : public NodeSource {
 public:
  bool Applies(const Options& options) const override { return !options.hosts.empty() || !options.host_file.empty(); }
  // The first --nnodes hosts of the list, or all, in the order given. Blocks until all have answered, 20 seconds at the
  // most; the first that can't be used ends it, with its name, ssh's own words and the remedy. Call from the main
  // thread.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
