#include "cohort/launcher/jobs/wait_tally.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cohort/launcher/control/parts/rank_wait.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::launcher {

namespace {

using std::chrono::milliseconds;

constexpr double kPartOfAll = 0.25;     // of the time, at least
constexpr double kPartOfTwo = 2.0 / 3;  // of the waits for the two that were waited for most
constexpr double kDeviations = 2.6;     // of a normal distribution: one in 200 such statements may be wrong

// The least part that is likely where `seen` of `looks` have shown it (Wilson's interval).
double LeastPart(size_t seen, size_t looks) {
  if (looks == 0) return 0;
  const auto n = static_cast<double>(looks);
  const double part = static_cast<double>(seen) / n, z = kDeviations;
  const double middle = part + z * z / (2 * n);
  const double width = z * std::sqrt(part * (1 - part) / n + z * z / (4 * n * n));
  return (middle - width) / (1 + z * z / n);
}

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
  ++looks_;
  for (auto& [rank, entry] : entries_) entry.waiting = 0;
  for (const runtime::Straggler& straggler : runtime::FindStragglers(waits, members)) {
    Entry& entry = entries_[static_cast<uint32_t>(straggler.rank)];
    entry.waiting = straggler.waiting;
    ++entry.looks;
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
  size_t most = 0, next = 0;
  uint32_t rank = 0;
  for (const auto& [one, entry] : entries_) {
    next = std::max(next, std::min(entry.looks, most));
    if (entry.looks <= most) continue;
    most = entry.looks;
    rank = one;
  }
  if (LeastPart(most, looks_) < kPartOfAll || LeastPart(most, most + next) < kPartOfTwo) return "";
  return "rank " + std::to_string(rank) + " was waited for at " + std::to_string(most) + " of " +
         std::to_string(looks_) + " looks";
}

}  // namespace cohort::launcher
