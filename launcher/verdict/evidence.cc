#include "cohort/launcher/verdict/evidence.h"

#include <algorithm>
#include <utility>

namespace cohort::launcher {
namespace {

constexpr double kHeldUp = 0.4;       // of the time in a call, and the rank is to blame for it
constexpr double kSureOfNodes = 0.6;  // that the network between two nodes is

Timelines Place(const History& history) { return PlaceCalls(history, kLeastWaitNs); }

}  // namespace

Evidence::Evidence(const History& history)
    : nodes(history.nodes),
      timelines(Place(history)),
      steps(FindSteps(history, &timelines)),
      path(timelines),
      doings(history.states),
      usual(timelines, steps) {
  for (const auto& [rank, line] : timelines.ranks) node_of[rank] = line.front().call.node;
  for (const RankState& state : history.states) node_of[state.rank] = state.node;
  for (const UnjoinedRank& rank : history.unjoined) {
    if (!node_of.contains(rank.rank)) unjoined[rank.rank] = rank;
  }
}

std::string Evidence::NodeOf(uint32_t rank) const {
  const auto found = node_of.find(rank);
  return found == node_of.end() || found->second >= nodes.size() ? "" : nodes[found->second];
}

std::vector<PathPiece> Evidence::PathOf(size_t step) const {
  const Step& its = steps.all[step];
  uint32_t last = timelines.ranks.begin()->first;
  uint64_t latest_ns = 0;
  size_t at = 0;
  for (const auto& [rank, line] : timelines.ranks) {
    const uint64_t end_ns = its.parts[at++].end_ns;
    if (end_ns <= latest_ns) continue;
    latest_ns = end_ns;
    last = rank;
  }
  return path.Find(last, its.span);
}

void Evidence::Name(uint32_t rank, size_t call, Culprit* culprit) const {
  const auto found = timelines.ranks.find(rank);
  if (found == timelines.ranks.end()) return;
  const std::vector<PlacedCall>& line = found->second;
  if (call < line.size()) {
    culprit->call = line[call].call.shape->call();
    culprit->site = line[call].call.shape->site();
  }
  if (call > 0 && call <= line.size()) culprit->after = line[call - 1].call.shape->site();
}

void Evidence::NameWaiting(const std::vector<Span>& spans, Culprit* culprit) const {
  const uint64_t length_ns = LengthOf(spans);
  for (const auto& [rank, blocked_ns] : path.Blocked(spans)) {
    const bool is_culprit = std::find(culprit->ranks.begin(), culprit->ranks.end(), rank) != culprit->ranks.end();
    if (is_culprit || blocked_ns * 10 < length_ns) continue;
    culprit->waiting.push_back(rank);
    culprit->waited_ns = std::max(culprit->waited_ns, blocked_ns);
  }
}

Culprit Evidence::BlameCall(const std::vector<CallName>& members, const std::vector<Span>& spans) const {
  Culprit culprit;
  culprit.in_call = true;
  std::set<std::string> places;
  double most_ns = 0;
  for (const CallName& member : members) {
    places.insert(NodeOf(member.rank));
    const Doings its = doings.In(member.rank, spans);
    if (its.held_up_ns() < kHeldUp * its.asked_ns || its.held_up_ns() <= most_ns) continue;
    most_ns = its.held_up_ns();
    culprit.ranks = {member.rank};
    culprit.reason = FindReason(its, Doings());
    culprit.sure = its.held_up_ns() / its.asked_ns;
  }
  if (!members.empty()) Name(members.front().rank, members.front().index, &culprit);
  if (!culprit.ranks.empty()) {
    culprit.nodes = {NodeOf(culprit.ranks[0])};
    return culprit;
  }
  culprit.nodes = {places.begin(), places.end()};
  culprit.sure = places.size() == 2 ? kSureOfNodes : 1 / static_cast<double>(1 + places.size());
  return culprit;
}

uint64_t LengthOf(const std::vector<Span>& spans) {
  uint64_t sum_ns = 0;
  for (const Span& span : spans) sum_ns += span.length_ns();
  return sum_ns;
}

}  // namespace cohort::launcher
