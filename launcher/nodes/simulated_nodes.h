// --simulate-nodes N: one machine stands for N nodes, each with an agent of its own, for trials and tests. They talk to
// each other as real nodes do.
#pragma once

#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

class SimulatedNodes : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // The nodes share this machine's CPUs evenly. Each has --simulate-gpus pretended GPUs, and never a real one: two
  // nodes can't own the same.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
