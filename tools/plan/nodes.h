// `--nodes`: which ranks share a host, as people write it; what can't serve several.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/placement.h"

namespace cohort::tools {

// "3": that number of nodes, with equal parts of the `ranks` ranks as far as that goes. "4,3,1": the ranks on each
// node; then `ranks` does not count. Nodes have ranges of ranks, or, `cyclic`, get them in turn. kInvalidArgument names
// the remedy.
absl::StatusOr<comm::Placement> ReadNodes(const std::string& text, int ranks, bool cyclic);

// kInvalidArgument, with the reason, where the algorithm serves one host only and there are more: a live group never
// takes it then.
absl::Status CheckHosts(const comm::AlgorithmInfo& algorithm, int64_t nodes);

}  // namespace cohort::tools
