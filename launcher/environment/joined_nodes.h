// Machines without a scheduler and without ssh: this one prints a line, and whoever sits at another pastes it there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/environment/node_source.h"
#include "launcher/join/gate.h"

namespace cohort::launcher {

class JoinedNodes : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  // This machine and --nnodes - 1 others, in the order of their coming. Waits for them, --wait or ten minutes.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

// This machine first, then those that came, with their agents; equal names are told apart by a number. For all sources
// whose nodes come by themselves.
absl::StatusOr<JobNodes> WithJoined(const Options& options, const std::string& source, std::vector<JoinedNode> joined);

// kInvalidArgument: --iface names no network of this machine.
absl::Status CheckOwnNetwork(const Options& options);

// How many others are enough, of --nnodes MIN:MAX; all, where it is none.
std::optional<int> LeastOthers(const Options& options);

}  // namespace cohort::launcher
