#include "cohort/runtime/segment/wait_graph.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "cohort/runtime/segment/call_compare.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::runtime {
namespace {

constexpr size_t kCallsShown = 8;
constexpr const char* kDeadlockRemedy =
    "; start what the others wait for before waiting (begin receives before sends, or put both into one batch), and "
    "make all members call the operations of different groups in one order";

// Values of comm::CollectiveKind.
constexpr uint16_t kBroadcast = 1;
constexpr uint16_t kReduce = 2;
constexpr uint16_t kAllReduce = 3;
constexpr uint16_t kGather = 4;
constexpr uint16_t kScatter = 5;
constexpr uint16_t kAllGather = 6;
constexpr uint16_t kReduceScatter = 7;
constexpr uint16_t kAllToAll = 8;
constexpr uint16_t kBarrier = 9;
constexpr uint16_t kSend = 10;
constexpr uint16_t kRecv = 11;

// The members whose calls a call can't end without.
enum class Needs { kUnknown, kEverybody, kRoot };
Needs NeedsOf(const AwaitedCall& call, bool is_root) {
  if (call.bytes == 0 && call.kind != kBarrier) return Needs::kUnknown;
  switch (call.kind) {
    case kAllReduce:
    case kAllGather:
    case kReduceScatter:
    case kAllToAll:
    case kBarrier:
      return Needs::kEverybody;
    case kBroadcast:
    case kScatter:
      return is_root ? Needs::kUnknown : Needs::kRoot;
    case kReduce:
    case kGather:
      return is_root ? Needs::kEverybody : Needs::kUnknown;
    default:
      return Needs::kUnknown;
  }
}

// The ranks and the collectives that they wait for as nodes. A rank points at its collectives and at the peers of its
// messages, a collective at the members that have not called it.
class WaitGraph {
 public:
  // `strict`: only what is certain, between ranks whose waits are bound.
  WaitGraph(std::span<const RankWait> ranks, const GroupMembers& members, bool strict)
      : ranks_(ranks), members_(members), strict_(strict), to_(ranks.size()), from_(ranks.size()) {
    for (size_t i = 0; i < ranks.size(); ++i) index_[ranks[i].rank] = i;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!IsPart(ranks[i]) || !ranks[i].waits) continue;
      for (const AwaitedCall& call : ranks[i].calls) AddCall(i, call);
    }
  }

  // The nodes that are left when all have gone that point at nobody, or at which nobody points, again and again.
  std::vector<bool> InCycles() const;
  // The nodes of one component after another among `left`.
  std::vector<std::vector<size_t>> Components(const std::vector<bool>& left) const;
  // The ranks that come to `node`: their nodes, in no order.
  std::vector<size_t> RanksThatReach(size_t node) const;
  bool IsRank(size_t node) const { return node < ranks_.size(); }
  size_t nodes() const { return to_.size(); }
  const RankWait& rank(size_t node) const { return ranks_[node]; }
  // The ranks among `left` that the call of this rank lacks.
  std::vector<int> Lacked(size_t rank, const AwaitedCall& call, const std::vector<bool>& left) const;

 private:
  using CallKey = std::tuple<uint64_t, uint64_t>;  // group and sequence

  bool IsPart(const RankWait& rank) const { return !strict_ || (rank.waits && rank.bound); }
  void Point(size_t from, size_t to) {
    to_[from].push_back(to);
    from_[to].push_back(from);
  }
  void AddCall(size_t rank, const AwaitedCall& call);
  std::vector<size_t> Targets(size_t rank, const AwaitedCall& call) const;
  std::optional<size_t> PeerOf(size_t rank, const AwaitedCall& call) const;
  std::optional<size_t> AbsentRoot(const AwaitedCall& call) const;
  std::vector<size_t> Absent(const AwaitedCall& call, const std::vector<int>& members) const;
  bool LacksReceiver(const RankWait& sender, const RankWait& receiver, const AwaitedCall& send) const;

  const std::span<const RankWait> ranks_;
  const GroupMembers& members_;
  const bool strict_;
  std::unordered_map<int, size_t> index_;
  std::map<CallKey, size_t> calls_;
  std::vector<std::vector<size_t>> to_;
  std::vector<std::vector<size_t>> from_;
};

const LatestCall* Latest(const RankWait& rank, uint64_t group, uint16_t kind, int peer) {
  for (const LatestCall& call : rank.progress.latest) {
    if (call.group == group && call.kind == kind && call.peer == peer) return &call;
  }
  return nullptr;
}

// Whether it is certain that the rank has not made this call.
bool HasNotCalled(const RankWait& rank, uint64_t group, uint16_t kind, int peer, uint64_t sequence) {
  const LatestCall* latest = Latest(rank, group, kind, peer);
  return latest == nullptr ? !rank.progress.forgets : latest->sequence < sequence;
}

bool WaitGraph::LacksReceiver(const RankWait& sender, const RankWait& receiver, const AwaitedCall& send) const {
  if (!HasNotCalled(receiver, send.group, kRecv, sender.rank, send.sequence)) return false;
  if (send.bytes > kMostBufferedBytes || !strict_) return true;
  if (sender.node != receiver.node) return false;
  const LatestCall* latest = Latest(receiver, send.group, kRecv, sender.rank);
  return latest == nullptr || latest->done;
}

// The other side of a message, if it has not come.
std::optional<size_t> WaitGraph::PeerOf(size_t rank, const AwaitedCall& call) const {
  const auto found = index_.find(call.peer);
  if (found == index_.end() || !IsPart(ranks_[found->second])) return std::nullopt;
  const RankWait& peer = ranks_[found->second];
  const bool lacking = call.kind == kSend ? LacksReceiver(ranks_[rank], peer, call)
                                          : HasNotCalled(peer, call.group, kSend, ranks_[rank].rank, call.sequence);
  return lacking ? std::optional<size_t>(found->second) : std::nullopt;
}

std::vector<size_t> WaitGraph::Absent(const AwaitedCall& call, const std::vector<int>& members) const {
  std::vector<size_t> absent;
  for (const int member : members) {
    const auto found = index_.find(member);
    if (found == index_.end() || !IsPart(ranks_[found->second])) continue;
    if (HasNotCalled(ranks_[found->second], call.group, 0, -1, call.sequence)) absent.push_back(found->second);
  }
  return absent;
}

std::optional<size_t> WaitGraph::AbsentRoot(const AwaitedCall& call) const {
  const std::vector<size_t> absent = Absent(call, {call.peer});
  return absent.empty() ? std::nullopt : std::optional<size_t>(absent[0]);
}

void WaitGraph::AddCall(size_t rank, const AwaitedCall& call) {
  if (call.device && strict_) return;
  if (IsPointToPoint(call.kind)) {
    if (const std::optional<size_t> peer = PeerOf(rank, call)) Point(rank, *peer);
    return;
  }
  Needs needs = NeedsOf(call, call.peer == ranks_[rank].rank);
  if (needs == Needs::kUnknown && !strict_) needs = Needs::kEverybody;
  if (needs == Needs::kUnknown) return;
  if (needs == Needs::kRoot) {
    if (const std::optional<size_t> root = AbsentRoot(call)) Point(rank, *root);
    return;
  }
  const auto members = members_.find(call.group);
  if (members == members_.end()) return;
  const auto [node, fresh] = calls_.try_emplace({call.group, call.sequence}, to_.size());
  if (fresh) {
    to_.emplace_back();
    from_.emplace_back();
    for (const size_t absent : Absent(call, members->second)) Point(node->second, absent);
  }
  Point(rank, node->second);
}

std::vector<int> WaitGraph::Lacked(size_t rank, const AwaitedCall& call, const std::vector<bool>& left) const {
  std::vector<int> lacked;
  const auto add = [&](size_t node) {
    if (left[node]) lacked.push_back(ranks_[node].rank);
  };
  const auto collective = calls_.find({call.group, call.sequence});
  if (call.device) return lacked;
  if (IsPointToPoint(call.kind)) {
    if (const std::optional<size_t> peer = PeerOf(rank, call)) add(*peer);
  } else if (NeedsOf(call, call.peer == ranks_[rank].rank) == Needs::kRoot) {
    if (const std::optional<size_t> root = AbsentRoot(call)) add(*root);
  } else if (collective != calls_.end() &&
             std::find(to_[rank].begin(), to_[rank].end(), collective->second) != to_[rank].end()) {
    for (const size_t node : to_[collective->second]) add(node);
  }
  std::sort(lacked.begin(), lacked.end());
  return lacked;
}

std::vector<bool> WaitGraph::InCycles() const {
  std::vector<bool> left(nodes(), true);
  std::vector<size_t> out(nodes());
  std::vector<size_t> in(nodes());
  std::vector<size_t> gone;
  const auto remove = [&](size_t node) {
    left[node] = false;
    gone.push_back(node);
  };
  for (size_t node = 0; node < nodes(); ++node) {
    out[node] = to_[node].size();
    in[node] = from_[node].size();
    if (out[node] == 0 || in[node] == 0) remove(node);
  }
  while (!gone.empty()) {
    const size_t node = gone.back();
    gone.pop_back();
    for (const size_t other : from_[node]) {
      if (--out[other] == 0 && left[other]) remove(other);
    }
    for (const size_t other : to_[node]) {
      if (--in[other] == 0 && left[other]) remove(other);
    }
  }
  return left;
}

std::vector<std::vector<size_t>> WaitGraph::Components(const std::vector<bool>& left) const {
  std::vector<std::vector<size_t>> components;
  std::vector<bool> seen(nodes(), false);
  for (size_t start = 0; start < nodes(); ++start) {
    if (!left[start] || seen[start]) continue;
    std::vector<size_t> component{start};
    seen[start] = true;
    for (size_t i = 0; i < component.size(); ++i) {
      for (const auto* neighbours : {&to_[component[i]], &from_[component[i]]}) {
        for (const size_t other : *neighbours) {
          if (!left[other] || seen[other]) continue;
          seen[other] = true;
          component.push_back(other);
        }
      }
    }
    components.push_back(std::move(component));
  }
  return components;
}

std::vector<size_t> WaitGraph::RanksThatReach(size_t node) const {
  std::vector<bool> seen(nodes(), false);
  std::vector<size_t> reached{node};
  seen[node] = true;
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const size_t other : from_[reached[i]]) {
      if (seen[other]) continue;
      seen[other] = true;
      reached.push_back(other);
    }
  }
  reached.erase(reached.begin());
  std::erase_if(reached, [this](size_t other) { return !IsRank(other); });
  return reached;
}

// "all_reduce(sum, float32, 8) of group 00000000000000ff at train.cc:88".
std::string Name(const AwaitedCall& call, bool name_group) {
  std::string text = call.call;
  if (name_group) text += " of " + GroupName(call.group);
  return call.site.empty() ? text : text + " at " + call.site;
}

// Ranks of one deadlock in equal calls that wait for the same ranks.
struct AlikeRanks {
  std::vector<int> ranks;
  const AwaitedCall* call = nullptr;
  std::vector<int> lacked;
  bool IsLike(const AlikeRanks& other) const {
    return call->group == other.call->group && call->sequence == other.call->sequence &&
           call->call == other.call->call && call->site == other.call->site && lacked == other.lacked;
  }
};

std::string Text(const std::vector<int>& ranks, const std::vector<AlikeRanks>& alike, bool name_groups) {
  std::string text =
      DescribeRanks(ranks) + (ranks.size() == 1 ? " waits for itself" : " wait for each other") + " (deadlock)";
  for (size_t i = 0; i < std::min(alike.size(), kCallsShown); ++i) {
    const AlikeRanks& some = alike[i];
    const bool one = some.ranks.size() == 1;
    text += "; " + DescribeRanks(some.ranks) + (one ? " is in " : " are in ") + Name(*some.call, name_groups) +
            (one ? " and waits for " : " and wait for ") +
            (some.lacked == some.ranks ? "itself" : DescribeRanks(some.lacked));
  }
  if (alike.size() > kCallsShown) text += "; and " + std::to_string(alike.size() - kCallsShown) + " more calls";
  return text + kDeadlockRemedy;
}

Deadlock Describe(const WaitGraph& graph, const std::vector<size_t>& component, const std::vector<bool>& left) {
  std::vector<size_t> nodes;
  std::copy_if(component.begin(), component.end(), std::back_inserter(nodes),
               [&graph](size_t node) { return graph.IsRank(node); });
  std::sort(nodes.begin(), nodes.end(),
            [&graph](size_t a, size_t b) { return graph.rank(a).rank < graph.rank(b).rank; });
  Deadlock deadlock;
  std::set<std::pair<uint64_t, uint64_t>> groups;
  std::vector<AlikeRanks> alike;
  for (const size_t node : nodes) {
    const RankWait& rank = graph.rank(node);
    deadlock.ranks.push_back(rank.rank);
    bool told = false;
    for (const AwaitedCall& call : rank.calls) {
      AlikeRanks one{{rank.rank}, &call, graph.Lacked(node, call, left)};
      if (one.lacked.empty()) continue;
      groups.emplace(call.group, call.epoch);
      if (std::exchange(told, true)) continue;
      const auto same =
          std::find_if(alike.begin(), alike.end(), [&one](const AlikeRanks& some) { return some.IsLike(one); });
      if (same == alike.end()) {
        alike.push_back(std::move(one));
      } else {
        same->ranks.push_back(rank.rank);
      }
    }
  }
  for (const auto& [group, epoch] : groups) deadlock.groups.push_back({group, epoch});
  deadlock.text = Text(deadlock.ranks, alike, groups.size() > 1);
  return deadlock;
}

}  // namespace

AwaitedCall MakeAwaitedCall(const CallRecord& record) {
  AwaitedCall call;
  call.group = record.signature.group;
  call.epoch = record.signature.epoch;
  call.sequence = record.signature.sequence;
  call.kind = record.signature.kind;
  call.peer = record.peer_world_rank;
  call.bytes = record.bytes;
  call.device = record.device >= 0;
  call.call = DescribeCall(record);
  call.site = SiteOf(record);
  return call;
}

std::vector<Deadlock> FindDeadlocks(std::span<const RankWait> ranks, const GroupMembers& members) {
  const WaitGraph graph(ranks, members, /*strict=*/true);
  const std::vector<bool> left = graph.InCycles();
  std::vector<Deadlock> deadlocks;
  for (const std::vector<size_t>& component : graph.Components(left)) {
    deadlocks.push_back(Describe(graph, component, left));
  }
  return deadlocks;
}

std::vector<Straggler> FindStragglers(std::span<const RankWait> ranks, const GroupMembers& members) {
  const WaitGraph graph(ranks, members, /*strict=*/false);
  std::vector<Straggler> stragglers;
  for (size_t node = 0; node < ranks.size(); ++node) {
    if (ranks[node].waits) continue;
    if (const size_t waiting = graph.RanksThatReach(node).size(); waiting > 0) {
      stragglers.push_back({ranks[node].rank, waiting});
    }
  }
  std::sort(stragglers.begin(), stragglers.end(), [](const Straggler& a, const Straggler& b) {
    return std::tuple(b.waiting, a.rank) < std::tuple(a.waiting, b.rank);
  });
  return stragglers;
}

std::vector<int> FindWaitersOf(int rank, std::span<const RankWait> ranks, const GroupMembers& members) {
  const WaitGraph graph(ranks, members, /*strict=*/false);
  std::vector<int> waiters;
  for (size_t node = 0; node < ranks.size(); ++node) {
    if (ranks[node].rank != rank) continue;
    std::vector<size_t> reached = graph.RanksThatReach(node);
    std::sort(reached.begin(), reached.end());
    for (const size_t waiter : reached) waiters.push_back(ranks[waiter].rank);
  }
  return waiters;
}

}  // namespace cohort::runtime
