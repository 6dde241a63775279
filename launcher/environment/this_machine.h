// The machine that dlaunch runs on, as the job's only node.
#pragma once

#include "cohort/launcher/environment/node_source.h"

namespace cohort::launcher {

class ThisMachine : public NodeSource {
 public:
  Detection Detect(const Options&) const override { return {true, "this machine"}; }  // the last in environments.def
  // kInvalidArgument when more than one node is asked for.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

// This machine's host name.
std::string HostName();
// `count` pretended GPUs, in host memory.
std::vector<v1::Device> SimulatedDevices(int count);

}  // namespace cohort::launcher
