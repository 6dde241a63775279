// The machine that dlaunch runs on, as the job's only node.
#pragma once

#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

class ThisMachine : public NodeSource {
 public:
  Detection Detect(const Options&) const override { return {true, "this machine"}; }  // the last in node_sources.def
  // kInvalidArgument when more than one node is asked for.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
