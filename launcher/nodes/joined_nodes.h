// Machines without a scheduler and without ssh: this one prints a line, and a person at another pastes it there.
#pragma once

#include "absl/status/statusor.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

class JoinedNodes : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // This machine and --nnodes - 1 others, in the order of their coming. Waits for them, --wait or ten minutes.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

// The resources of this machine for the job; kInvalidArgument: no part to take, or no network that --iface names.
absl::StatusOr<NodeResources> OwnResources(const Options& options);

// This machine first, then those that came, with their agents; equal names are told apart by a number. With --nnodes
// MIN:MAX those that can't be used are left out, and named; else the first such ends the wait. For all sources whose
// nodes come by themselves: `wait` tells for how many and how long, and the source's words are left to the caller.
absl::StatusOr<JobNodes> AwaitJoined(const Options& options, NodeResources own, JoinGate* gate, const JoinKey& key,
                                     JoinGate::AwaitOptions wait);

}  // namespace cohort::launcher
