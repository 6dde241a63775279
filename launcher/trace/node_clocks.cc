#include "cohort/launcher/trace/node_clocks.h"

#include <algorithm>
#include <deque>

namespace cohort::launcher {
namespace {

// Each rank's clock may be a few microseconds off.
constexpr int64_t kRecordErrorNs = 5'000;

int64_t Difference(uint64_t later, uint64_t earlier) { return static_cast<int64_t>(later - earlier); }

}  // namespace

void NodeClocks::Bounds::Narrow(const Bounds& other) {
  low = std::max(low, other.low);
  high = std::min(high, other.high);
}

NodeClocks::Bounds NodeClocks::Pair::Both() const {
  Bounds both = before;
  both.Narrow(present);
  return both;
}

void NodeClocks::OnWallClock(size_t node, uint64_t steady_ns, uint64_t unix_ns) {
  wall_[node] = Difference(unix_ns, steady_ns);
}

void NodeClocks::OnCall(const std::vector<Visit>& visits) {
  for (size_t i = 1; i < visits.size(); ++i) {
    const Visit& one = visits[0];
    const Visit& other = visits[i];
    Bounds bounds;
    if (one.first_ended_ns) bounds.low = Difference(other.last_begun_ns, *one.first_ended_ns) - kRecordErrorNs;
    if (other.first_ended_ns) bounds.high = Difference(*other.first_ended_ns, one.last_begun_ns) + kRecordErrorNs;
    OnBounds(one.node, other.node, bounds, one.last_begun_ns);
  }
}

void NodeClocks::OnBounds(size_t first, size_t second, const Bounds& bounds, uint64_t now_ns) {
  if (bounds.empty()) return;  // begun after it had ended: no rank says so
  const auto at = pairs_.find({first, second});
  if (at == pairs_.end() && pairs_.size() >= kMostPairs) return;
  Pair& pair = at != pairs_.end() ? at->second : pairs_[{first, second}];
  if (pair.since_ns == 0) pair.since_ns = now_ns;
  if (Difference(now_ns, pair.since_ns) > static_cast<int64_t>(kWindowNs)) {
    pair.before = pair.present;
    pair.present = Bounds();
    pair.since_ns = now_ns;
  }
  pair.present.Narrow(bounds);
  if (!pair.Both().empty()) return;
  // Drift is forgiven: the older bounds go. A jump contradicts the new ones too.
  pair.before = Bounds();
  if (!pair.present.empty()) return;
  ++jumps_;
  pair.present = bounds;
  pair.since_ns = now_ns;
}

// Breadth first from node 0: the fewest pairs between them, whose errors add up.
void NodeClocks::Update() {
  std::vector<Known> known(known_.size());
  std::vector<bool> reached(known_.size(), false);
  std::deque<size_t> next;
  if (!known.empty()) {
    known[0].error = 0;
    reached[0] = true;
    next.push_back(0);
  }
  for (; !next.empty(); next.pop_front()) {
    const size_t from = next.front();
    for (const auto& [nodes, pair] : pairs_) {
      if (nodes.first != from && nodes.second != from) continue;
      const size_t to = nodes.first == from ? nodes.second : nodes.first;
      const Bounds bounds = pair.Both();
      if (reached[to] || !bounds.whole()) continue;
      const int64_t middle = bounds.low + (bounds.high - bounds.low) / 2;
      known[to].difference = known[from].difference + (nodes.first == from ? middle : -middle);
      known[to].error = *known[from].error + static_cast<uint64_t>(bounds.high - bounds.low + 1) / 2;
      reached[to] = true;
      next.push_back(to);
    }
  }
  for (size_t node = 1; node < known.size(); ++node) {
    if (!reached[node] && wall_[node] && wall_[0]) known[node].difference = *wall_[0] - *wall_[node];
  }
  // A known difference that the bounds still allow stays: times of one node must not move to and fro.
  for (size_t node = 1; node < known.size(); ++node) {
    const bool bound_before = known_[node].error.has_value() && known[node].error.has_value();
    if (!bound_before) continue;
    const int64_t moved = known[node].difference - known_[node].difference;
    const uint64_t distance = static_cast<uint64_t>(moved < 0 ? -moved : moved);
    if (distance >= *known[node].error) continue;
    known[node].difference = known_[node].difference;
    known[node].error = *known[node].error + distance;
  }
  known_ = std::move(known);
}

uint64_t NodeClocks::Aligned(size_t node, uint64_t ns) const {
  return ns - static_cast<uint64_t>(known_[node].difference);
}

std::optional<uint64_t> NodeClocks::AtWallClock(uint64_t unix_ns) const {
  if (wall_.empty() || !wall_[0]) return std::nullopt;
  return unix_ns - static_cast<uint64_t>(*wall_[0]);
}

uint64_t NodeClocks::LargestError() const {
  uint64_t largest = 0;
  for (const Known& known : known_) largest = std::max(largest, known.error.value_or(0));
  return largest;
}

size_t NodeClocks::Unbound() const {
  return static_cast<size_t>(
      std::count_if(known_.begin(), known_.end(), [](const Known& known) { return !known.error.has_value(); }));
}

}  // namespace cohort::launcher
