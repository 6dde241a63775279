#include "cohort/launcher/jobs/wait_tally.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cohort/launcher/control/parts/rank_wait.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::launcher {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongWait{3000};
constexpr int kPartOfAll = 4;  // of the time: a quarter at least

}  // namespace

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
  counted_ += std::min<milliseconds>(since, kLongestGap);
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

std::string WaitTally::DescribeLongest() const {
  milliseconds most{0}, next{0};
  uint32_t rank = 0;
  for (const auto& [one, entry] : entries_) {
    next = std::max(next, std::min(entry.total, most));
    if (entry.total <= most) continue;
    most = entry.total;
    rank = one;
  }
  if (most < kLongWait || most * kPartOfAll < counted_ || most < 2 * next) return "";
  const auto seconds = [](milliseconds time) { return std::to_string(time.count() / 1000) + " s"; };
  return "rank " + std::to_string(rank) + " was waited for in " + seconds(most) + " of " + seconds(counted_);
}

}  // namespace cohort::launcher
