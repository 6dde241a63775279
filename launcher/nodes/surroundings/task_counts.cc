#include "cohort/launcher/nodes/surroundings/task_counts.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
absl::StatusOr<std::vector<int>> ParseTaskCounts(std::string_view text, const std::string& origin) {
  const auto bad = [&] {
    return InvalidArgumentError(Remedy::kListOfTasks,
                                origin + " is '" + Printable(text, 40) +
                                    "', and no list of tasks such as 4(x2),2; unset it, or give --nproc-per-node");
  };
  std::vector<int> counts;
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::string_view part(word.data(), word.size());
    const size_t open = std::min(part.find("(x"), part.size());
    const std::optional<int> tasks = ReadWholeNumber(part.substr(0, open), 1, kMaxTasks);
    std::optional<int> nodes = 1;
    if (open < part.size()) {
      if (part.back() != ')') return bad();
      nodes = ReadWholeNumber(part.substr(open + 2, part.size() - open - 3), 1, kMaxNodes);
    }
    if (!tasks || !nodes || counts.size() + static_cast<size_t>(*nodes) > static_cast<size_t>(kMaxNodes)) return bad();
    counts.insert(counts.end(), static_cast<size_t>(*nodes), *tasks);
  }
  return counts;
}

std::string DescribeOtherTasks(const std::vector<NodeResources>& nodes, const Placement& placement) {
  int tasks = 0;
  bool devices = false;
  for (const NodeResources& node : nodes) {
    if (!node.tasks) return "";
    tasks += *node.tasks;
    devices = devices || !node.devices.empty();
  }
  // A task a node is what schedulers give to a job that asks for nothing.
  if (!devices || tasks == placement.world_size || static_cast<size_t>(tasks) == nodes.size()) return "";
  return "the allocation has " + std::to_string(tasks) + " tasks, and the job " + std::to_string(placement.world_size) +
         (placement.world_size == 1 ? " rank" : " ranks") +
         ", by the nodes' GPUs; --nproc-per-node gives another number";
}

}  // namespace cohort::launcher
