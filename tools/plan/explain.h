// `plan explain`: the algorithm that would be chosen for a block, as text or JSON.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/comm/select/selector.h"

namespace cohort::tools {

// The document that tools/schemas/plan-explain.schema.json describes.
absl::StatusOr<std::string> ExplainJson(comm::CollectiveKind kind, int64_t bytes, const comm::GroupTopology& topology,
                                        const comm::Tuning& tuning);

}  // namespace cohort::tools
