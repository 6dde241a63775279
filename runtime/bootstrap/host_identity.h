// Finds the ranks that share a machine, for ranks that have no agent to tell them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/bootstrap/bootstrap.h"

namespace cohort::runtime {

// The machine and process of a rank. Ranks with equal `host` see each other's processes and memory.
struct RankPlace {
  std::string host;  // boot id, user and pid namespace
  std::string name;  // host name, for people
  int pid = 0;
};

RankPlace ThisPlace();
// "host name pid", and back; kInvalidArgument for any other text.
std::string FormatPlace(const RankPlace& place);
absl::StatusOr<RankPlace> ParsePlace(const std::string& text);

// One node for every run of consecutive ranks with equal hosts.
std::vector<NodeInfo> NodesOf(const std::vector<RankPlace>& places);
// True when a host's ranks are not consecutive, so that it stands for several nodes.
bool NodesShareHost(const std::vector<RankPlace>& places, const std::vector<NodeInfo>& nodes);

}  // namespace cohort::runtime
