// The tasks that a scheduler's allocation has on each node. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/machine/placement.h"

namespace cohort::launcher {

inline constexpr int kMaxTasks = 1 << 24;  // more than Slurm starts in a step

// Reads Slurm's form: "4(x2),2" stands for 4, 4, 2. kInvalidArgument, which begins with `origin`
// ("SLURM_TASKS_PER_NODE"): it is of another form, a number is 0, or there are more than kMaxNodes nodes.
absl::StatusOr<std::vector<int>> ParseTaskCounts(std::string_view text, const std::string& origin);

// One line where the ranks differ from the allocation's tasks because nodes have GPUs; empty otherwise. `nodes` are the
// nodes that have ranks. Call it where no number of ranks was typed.
std::string DescribeOtherTasks(const std::vector<NodeResources>& nodes, const Placement& placement);

}  // namespace cohort::launcher
