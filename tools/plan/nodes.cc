#include "tools/plan/nodes.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <vector>

namespace cohort::tools {
namespace {

constexpr int kMostRanks = 1024;

absl::Status Refuse(const std::string& text) {
  return absl::InvalidArgumentError(
      "--nodes needs a number of nodes, such as 2, or the ranks on each, such as 4,3,1, " + std::to_string(kMostRanks) +
      " in all, not \"" + text + "\"");
}

}  // namespace

absl::StatusOr<comm::Placement> ReadNodes(const std::string& text, int ranks, bool cyclic) {
  std::vector<int> counts;
  for (const char* at = text.data(); at != text.data() + text.size() + 1;) {
    int count = 0;
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), count);
    const bool last = end == text.data() + text.size();
    if (error != std::errc() || count < 1 || count > kMostRanks || (!last && *end != ',')) return Refuse(text);
    counts.push_back(count);
    at = end + 1;
  }
  if (counts.size() == 1) {
    const int nodes = counts[0];
    if (nodes > ranks) {
      return absl::InvalidArgumentError("--nodes " + text + " needs a rank on each node: give --ranks " + text +
                                        " or more, not " + std::to_string(ranks));
    }
    counts.assign(static_cast<size_t>(nodes), ranks / nodes);
    for (int i = 0; i < ranks % nodes; ++i) ++counts[static_cast<size_t>(i)];
  }
  if (std::accumulate(counts.begin(), counts.end(), 0) > kMostRanks) return Refuse(text);
  std::vector<int> nodes;
  for (bool more = true; more;) {
    more = false;
    for (size_t node = 0; node < counts.size(); ++node) {
      const int next = cyclic ? std::min(counts[node], 1) : counts[node];
      nodes.insert(nodes.end(), static_cast<size_t>(next), static_cast<int>(node));
      counts[node] -= next;
      more = more || counts[node] > 0;
    }
  }
  return comm::Placement(nodes);
}

absl::Status CheckHosts(const comm::AlgorithmInfo& algorithm, int64_t nodes) {
  if (!algorithm.traits.single_copy || nodes <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(comm::Name(algorithm.kind)) + " " + std::string(algorithm.name) +
                                    " reads and writes the memory of other ranks, so it serves groups on one host, not "
                                    "on " +
                                    std::to_string(nodes));
}

}  // namespace cohort::tools
