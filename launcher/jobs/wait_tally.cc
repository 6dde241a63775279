#include "cohort/launcher/jobs/wait_tally.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/launcher/control/parts/rank_wait.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::launcher {

using std::chrono::milliseconds;

void WaitTally::Count(const std::vector<const v1::NodeView*>& nodes, uint32_t world_size, TimePoint now) {
  std::vector<runtime::RankWait> waits;
  runtime::GroupMembers members;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node] == nullptr) continue;
    for (const v1::RankView& rank : nodes[node]->ranks()) {
      if (rank.pid() == 0) continue;  // ended: a call without it fails soon
      runtime::RankWait wait = ToRankWait(rank.wait(), static_cast<int>(node));
      wait.rank = static_cast<int>(rank.rank());
      waits.push_back(std::move(wait));
    }
    for (const v1::WaitedGroup& group : nodes[node]->groups()) {
      std::optional<std::vector<int>> ranks = ToMembers(group.members(), world_size);
      if (ranks.has_value()) members.emplace(group.group(), *std::move(ranks));
    }
  }
  const auto since = latest_ == TimePoint{} ? milliseconds(0) : std::chrono::duration_cast<milliseconds>(now - latest_);
  latest_ = now;
  for (auto& [rank, entry] : entries_) entry.waiting = 0;
  for (const runtime::Straggler& straggler : runtime::FindStragglers(waits, members)) {
    Entry& entry = entries_[static_cast<uint32_t>(straggler.rank)];
    entry.waiting = straggler.waiting;
    entry.total += std::min<milliseconds>(since, kLongestGap);
  }
}

size_t WaitTally::WaitingFor(uint32_t rank) const {
  const auto found = entries_.find(rank);
  return found == entries_.end() ? 0 : found->second.waiting;
}

milliseconds WaitTally::WaitedFor(uint32_t rank) const {
  const auto found = entries_.find(rank);
  return found == entries_.end() ? milliseconds(0) : found->second.total;
}

}  // namespace cohort::launcher
