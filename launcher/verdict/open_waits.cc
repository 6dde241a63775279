#include "cohort/launcher/verdict/open_waits.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/wait_graph.h"

namespace cohort::launcher {
namespace {

constexpr double kSure = 0.98;  // of what no other call of that rank's can explain
constexpr double kSureOfOneOfMany = 0.7;
constexpr double kBusy = 0.5;  // of the time, seen to do something else: it does not wait

// The calls that a rank is in and has not given up, as those of before a restart.
std::vector<size_t> OpenCalls(const std::vector<PlacedCall>& line) {
  uint32_t epoch = 0;
  for (const PlacedCall& placed : line) epoch = std::max(epoch, placed.call.shape->epoch());
  std::vector<size_t> open;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i].open() && line[i].call.shape->epoch() == epoch) open.push_back(i);
  }
  return open;
}

// The latest moment at which a call of the rank began, or ended.
uint64_t LatestMoment(const std::vector<PlacedCall>& line) {
  uint64_t latest_ns = 0;
  for (const PlacedCall& placed : line) {
    latest_ns = std::max(latest_ns, placed.open() ? placed.call.start_ns : placed.call.end_ns);
  }
  return latest_ns;
}

// Whether the rank waits in the calls that it is in. One that began another call since, which has ended, may do
// something else: then its agent sees it, while of a program that waits in a call it sees only what holds that up.
bool MayWait(const Evidence& evidence, uint32_t rank, const std::vector<PlacedCall>& line) {
  const uint64_t since_ns = LatestMoment(line);
  const Doings doings = evidence.doings.In(rank, {{since_ns, evidence.timelines.end_ns}});
  if (doings.seen_ns > 0) return doings.seen_ns - doings.held_up_ns() <= kBusy * doings.asked_ns;
  return evidence.doings.latest_ns() > since_ns || line.back().open();
}

runtime::AwaitedCall AwaitedOf(const TracedCall& call) {
  runtime::AwaitedCall awaited;
  awaited.group = call.shape->group();
  awaited.epoch = call.shape->epoch();
  awaited.sequence = call.sequence;
  awaited.kind = static_cast<uint16_t>(call.shape->kind());
  awaited.peer = call.shape->peer_rank();
  awaited.bytes = call.shape->bytes();
  return awaited;
}

// How far the rank has come in each group and with each peer.
runtime::CallProgress ProgressOf(const std::vector<PlacedCall>& line) {
  std::map<std::tuple<uint64_t, uint16_t, int32_t>, runtime::LatestCall> latest;
  for (const PlacedCall& placed : line) {
    const v1::CallShape& shape = *placed.call.shape;
    const bool message = runtime::IsPointToPoint(static_cast<uint16_t>(shape.kind()));
    const uint16_t kind = message ? static_cast<uint16_t>(shape.kind()) : 0;
    const int32_t peer = message ? shape.peer_rank() : -1;
    runtime::LatestCall& call = latest[{shape.group(), kind, peer}];
    if (call.sequence > placed.call.sequence) continue;
    call = {
        .group = shape.group(), .kind = kind, .peer = peer, .sequence = placed.call.sequence, .done = !placed.open()};
  }
  runtime::CallProgress progress;
  for (const auto& [key, call] : latest) progress.latest.push_back(call);
  return progress;
}

// The ranks that were seen in each group; all, where the group has as many members as there are ranks. Ranks that have
// not joined are ranks of the job too.
runtime::GroupMembers MembersOf(const Evidence& evidence) {
  std::map<uint64_t, std::set<int>> seen;
  std::map<uint64_t, size_t> sizes;
  for (const auto& [rank, line] : evidence.timelines.ranks) {
    for (const PlacedCall& placed : line) {
      seen[placed.call.shape->group()].insert(static_cast<int>(rank));
      sizes[placed.call.shape->group()] = static_cast<size_t>(placed.call.shape->group_size());
    }
  }
  runtime::GroupMembers members;
  for (auto& [group, ranks] : seen) {
    if (sizes[group] >= evidence.node_of.size() + evidence.unjoined.size()) {
      for (const auto& [rank, node] : evidence.node_of) ranks.insert(static_cast<int>(rank));
      for (const auto& [rank, its] : evidence.unjoined) ranks.insert(static_cast<int>(rank));
    }
    members[group] = {ranks.begin(), ranks.end()};
  }
  return members;
}

struct Open {
  uint32_t rank = 0;
  size_t call = 0;
  uint64_t start_ns = 0;
};

// Names those that wait, how long, and the call of the first of them.
void NameWaiters(const Evidence& evidence, const std::vector<Open>& waiting, Culprit* culprit) {
  const Open* first = nullptr;
  for (const Open& open : waiting) {
    culprit->waiting.push_back(open.rank);
    if (first == nullptr || open.start_ns < first->start_ns) first = &open;
  }
  if (first == nullptr) return;
  evidence.Name(first->rank, first->call, culprit);
  culprit->lost_ns = culprit->waited_ns = evidence.timelines.end_ns - first->start_ns;
}

// The ranks among the stragglers that are waited for most which have not joined.
std::vector<UnjoinedRank> UnjoinedOf(const Evidence& evidence, const std::vector<runtime::Straggler>& stragglers) {
  std::vector<UnjoinedRank> unjoined;
  for (const runtime::Straggler& straggler : stragglers) {
    const auto found = evidence.unjoined.find(static_cast<uint32_t>(straggler.rank));
    if (straggler.waiting == stragglers[0].waiting && found != evidence.unjoined.end()) {
      unjoined.push_back(found->second);
    }
  }
  return unjoined;
}

// The number of members of the call's group that have made no known call of it: those have not come.
size_t UnseenMembers(const TracedCall& call, const runtime::GroupMembers& members) {
  if (runtime::IsPointToPoint(static_cast<uint16_t>(call.shape->kind()))) return 0;
  const auto size = static_cast<size_t>(std::max(call.shape->group_size(), 0));
  const auto known = members.find(call.shape->group());
  return size - std::min(size, known == members.end() ? size : known->second.size());
}

// The ranks that are in this call, with those that wait for the rank whose call it is, directly or through others.
std::set<int> WaitersIn(const Evidence& evidence, const Open& open, std::span<const runtime::RankWait> waits,
                        const runtime::GroupMembers& members) {
  const std::vector<int> others = runtime::FindWaitersOf(static_cast<int>(open.rank), waits, members);
  std::set<int> ranks(others.begin(), others.end());
  for (const CallName& member : evidence.timelines.meetings[evidence.LineOf(open.rank)[open.call].meeting]) {
    ranks.insert(static_cast<int>(member.rank));
  }
  return ranks;
}

// `unseen`: the members that the earliest of these calls lacks. `waiting`: the open calls of those that wait for them.
Culprit BlameUnseen(const Evidence& evidence, size_t unseen, size_t members, const std::vector<Open>& waiting) {
  Culprit culprit;
  NameWaiters(evidence, waiting, &culprit);
  culprit.after.clear();  // of a rank that waits
  culprit.unseen = unseen;
  culprit.members = members;
  culprit.unknown = evidence.unjoined.empty() && evidence.node_of.size() < members;
  for (const auto& [rank, its] : evidence.unjoined) culprit.unjoined.push_back(its);
  culprit.sure = culprit.unknown ? kSure : kSureOfOneOfMany;
  return culprit;
}

// `waiting`: the open calls of those that wait for it.
Culprit BlameAbsent(const Evidence& evidence, uint32_t rank, const std::vector<Open>& waiting) {
  Culprit culprit;
  culprit.ranks = {rank};
  culprit.nodes = {evidence.NodeOf(rank)};
  const auto line = evidence.timelines.ranks.find(rank);
  const bool has_calls = line != evidence.timelines.ranks.end();
  const uint64_t free_ns = has_calls ? LatestMoment(line->second) : 0;
  NameWaiters(evidence, waiting, &culprit);
  culprit.after = has_calls ? line->second.back().call.shape->site() : "";
  const uint64_t since_ns = evidence.timelines.end_ns - culprit.waited_ns;
  const Span span{std::max(since_ns, free_ns), evidence.timelines.end_ns};
  culprit.reason = FindReason(evidence.doings.In(rank, {span}), Doings());
  return culprit;
}

}  // namespace

std::optional<Culprit> FindOpenWait(const Evidence& evidence, uint64_t least_ns) {
  std::vector<runtime::RankWait> waits;
  std::vector<Open> waiting;
  const uint64_t end_ns = evidence.timelines.end_ns;
  for (const auto& [rank, node] : evidence.node_of) {
    runtime::RankWait& wait = waits.emplace_back();
    wait.rank = static_cast<int>(rank);
    wait.node = static_cast<int>(node);
    const auto line = evidence.timelines.ranks.find(rank);
    if (line == evidence.timelines.ranks.end()) continue;
    wait.progress = ProgressOf(line->second);
    if (!MayWait(evidence, rank, line->second)) continue;
    for (const size_t call : OpenCalls(line->second)) {
      const TracedCall& open = line->second[call].call;
      if (end_ns - std::min(end_ns, open.start_ns) < least_ns) continue;
      if (!wait.waits) waiting.push_back({rank, call, open.start_ns});
      wait.waits = true;
      wait.calls.push_back(AwaitedOf(open));
    }
  }
  if (waiting.empty()) return std::nullopt;
  for (const auto& [rank, its] : evidence.unjoined) waits.emplace_back().rank = static_cast<int>(rank);
  const runtime::GroupMembers members = MembersOf(evidence);
  const std::vector<runtime::Straggler> stragglers = runtime::FindStragglers(waits, members);
  if (!stragglers.empty()) {
    const std::vector<UnjoinedRank> unjoined = UnjoinedOf(evidence, stragglers);
    const int straggler = unjoined.empty() ? stragglers[0].rank : static_cast<int>(unjoined[0].rank);
    const std::vector<int> waiters = runtime::FindWaitersOf(straggler, waits, members);
    std::erase_if(waiting, [&waiters](const Open& open) {
      return std::find(waiters.begin(), waiters.end(), static_cast<int>(open.rank)) == waiters.end();
    });
    if (!unjoined.empty()) {
      Culprit culprit = BlameUnjoined(unjoined);
      NameWaiters(evidence, waiting, &culprit);
      culprit.after.clear();  // of a rank that waits
      return culprit;
    }
    Culprit culprit = BlameAbsent(evidence, static_cast<uint32_t>(stragglers[0].rank), waiting);
    const bool others = stragglers.size() > 1 && stragglers[1].waiting == stragglers[0].waiting;
    culprit.sure = others ? kSureOfOneOfMany : kSure;
    return culprit;
  }
  // All have come, or wait for each other.
  const Open first = *std::min_element(
      waiting.begin(), waiting.end(), [](const Open& one, const Open& other) { return one.start_ns < other.start_ns; });
  const PlacedCall& open = evidence.LineOf(first.rank)[first.call];
  if (const size_t unseen = UnseenMembers(open.call, members); unseen > 0) {
    const std::set<int> waiters = WaitersIn(evidence, first, waits, members);
    std::erase_if(waiting, [&waiters](const Open& one) { return !waiters.contains(static_cast<int>(one.rank)); });
    return BlameUnseen(evidence, unseen, static_cast<size_t>(open.call.shape->group_size()), waiting);
  }
  uint64_t since_ns = 0;
  for (const CallName& member : evidence.timelines.meetings[open.meeting]) {
    since_ns = std::max(since_ns, evidence.timelines.At(member).call.start_ns);
  }
  Culprit culprit = evidence.BlameCall(evidence.timelines.meetings[open.meeting], {{since_ns, end_ns}});
  for (const Open& one : waiting) {
    if (std::find(culprit.ranks.begin(), culprit.ranks.end(), one.rank) == culprit.ranks.end()) {
      culprit.waiting.push_back(one.rank);
    }
  }
  culprit.lost_ns = culprit.waited_ns = end_ns - std::min(end_ns, since_ns);
  return culprit;
}

Culprit BlameUnjoined(const std::vector<UnjoinedRank>& ranks) {
  Culprit culprit;
  for (const UnjoinedRank& its : ranks) {
    culprit.ranks.push_back(its.rank);
    const bool known = std::find(culprit.nodes.begin(), culprit.nodes.end(), its.node) != culprit.nodes.end();
    if (!known) culprit.nodes.push_back(its.node);
  }
  culprit.unjoined = ranks;
  culprit.sure = 1;
  return culprit;
}

std::optional<History> UntilFailure(const History& history, uint64_t least_ns) {
  uint64_t well_ns = 0;  // the latest begin of a call that ended well
  for (const TracedCall& call : history.calls) {
    if (call.state == runtime::CallState::kDone) well_ns = std::max(well_ns, call.start_ns);
  }
  std::optional<uint64_t> failed_ns;
  for (const TracedCall& call : history.calls) {
    const bool counts = call.state == runtime::CallState::kFailed && call.end_ns > well_ns &&
                        call.end_ns - std::min(call.end_ns, call.start_ns) >= least_ns;
    if (counts) failed_ns = std::min(failed_ns.value_or(call.end_ns), call.end_ns);
  }
  if (!failed_ns) return std::nullopt;
  History until = history;
  std::erase_if(until.calls, [&](const TracedCall& call) { return call.start_ns >= *failed_ns; });
  for (TracedCall& call : until.calls) {
    if (call.end_ns < *failed_ns) continue;
    call.end_ns = *failed_ns;
    call.state = runtime::CallState::kStarted;
  }
  return until;
}

}  // namespace cohort::launcher
