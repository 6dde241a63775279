#include "cohort/launcher/verdict/every_step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "cohort/launcher/verdict/statistics.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMostLooked = 200;    // of the latest steps
constexpr double kLeastOfStep = 0.05;  // a rank that takes less longer than the others does not stand out
constexpr double kNoises = 4;          // nor one whose time the noise explains
constexpr double kLeastWaited = 0.3;   // of what it takes longer, by another rank
constexpr double kNearlyAsSlow = 0.7;  // others with as much of the first one's time are named too
constexpr uint64_t kLeastNs = 20'000;
constexpr size_t kFewestForNoise = 3;  // steps

// The own time of one rank.
struct OwnTimes {
  uint32_t rank = 0;
  std::vector<uint64_t> ns;  // by step; only those in which it is known
  std::vector<size_t> steps;
  uint64_t usual_ns = 0;
  double noise_ns = 0;   // of that
  double longer_ns = 0;  // than the others
};

std::vector<Span> OwnSpans(const Evidence& evidence, uint32_t rank, size_t at, const std::vector<size_t>& steps) {
  std::vector<Span> spans;
  const std::vector<PlacedCall>& line = evidence.LineOf(rank);
  for (const size_t step : steps) {
    const Step::Part& part = evidence.steps.all[step].parts[at];
    for (size_t i = part.first; i < part.last; ++i) spans.push_back({line[i].own_begin_ns, line[i].call.start_ns});
  }
  return spans;
}

// The noise is that of `usual_steps`.
std::vector<OwnTimes> Measure(const Evidence& evidence, const std::vector<size_t>& steps,
                              const std::vector<size_t>& usual_steps) {
  std::vector<OwnTimes> all;
  size_t at = 0;
  for (const auto& [rank, line] : evidence.timelines.ranks) {
    OwnTimes& times = all.emplace_back();
    times.rank = rank;
    const auto own_ns = [&](size_t step) -> std::optional<uint64_t> {
      const Step::Part& part = evidence.steps.all[step].parts[at];
      if (part.first == part.last) return std::nullopt;
      return LengthOf(OwnSpans(evidence, rank, at, {step}));
    };
    for (const size_t step : steps) {
      const std::optional<uint64_t> ns = own_ns(step);
      if (!ns) continue;
      times.ns.push_back(*ns);
      times.steps.push_back(step);
    }
    std::vector<uint64_t> usual;
    for (const size_t step : usual_steps) {
      if (const std::optional<uint64_t> ns = own_ns(step)) usual.push_back(*ns);
    }
    times.usual_ns = Median(times.ns);
    times.noise_ns =
        static_cast<double>(Spread(usual)) / std::sqrt(static_cast<double>(std::max<size_t>(times.ns.size(), 1)));
    ++at;
  }
  std::erase_if(all, [](const OwnTimes& times) { return times.ns.empty(); });
  return all;
}

uint64_t MedianOfOthers(const std::vector<OwnTimes>& all, const std::vector<uint32_t>& without) {
  std::vector<uint64_t> others;
  for (const OwnTimes& times : all) {
    if (std::find(without.begin(), without.end(), times.rank) == without.end()) others.push_back(times.usual_ns);
  }
  return Median(std::move(others));
}

// The part of the steps in which one of these ranks took longest.
double ShareOfSlowest(const std::vector<OwnTimes>& all, const std::vector<uint32_t>& ranks) {
  std::map<size_t, std::pair<uint64_t, uint32_t>> slowest;  // by step
  for (const OwnTimes& times : all) {
    for (size_t i = 0; i < times.steps.size(); ++i) {
      const auto [most, fresh] = slowest.emplace(times.steps[i], std::pair(times.ns[i], times.rank));
      if (!fresh && times.ns[i] > most->second.first) most->second = {times.ns[i], times.rank};
    }
  }
  size_t theirs = 0;
  for (const auto& [step, most] : slowest) {
    if (std::find(ranks.begin(), ranks.end(), most.second) != ranks.end()) ++theirs;
  }
  return static_cast<double>(theirs) / static_cast<double>(std::max<size_t>(slowest.size(), 1));
}

std::vector<size_t> Latest(const std::vector<size_t>& steps) {
  return {steps.end() - static_cast<std::ptrdiff_t>(std::min(steps.size(), kMostLooked)), steps.end()};
}

struct OnPath {
  std::map<uint32_t, std::vector<Span>> own;              // by rank
  std::map<uint32_t, std::map<size_t, uint64_t>> before;  // by rank: how long before each call
  uint64_t in_calls_ns = 0;
  uint64_t all_ns = 0;
};

void AddPath(const std::vector<PathPiece>& path, OnPath* sum) {
  for (const PathPiece& piece : path) {
    sum->all_ns += piece.span.length_ns();
    if (piece.kind == PathPiece::Kind::kCall) {
      sum->in_calls_ns += piece.span.length_ns();
      continue;
    }
    sum->own[piece.rank].push_back(piece.span);
    sum->before[piece.rank][piece.call] += piece.span.length_ns();
  }
}

// The call before which most of the time on the path was, by what repeats.
size_t LongestBefore(const Evidence& evidence, uint32_t rank, const OnPath& on_path) {
  const std::vector<PlacedCall>& line = evidence.LineOf(rank);
  std::map<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, size_t>> places;
  const auto found = on_path.before.find(rank);
  if (found == on_path.before.end()) return line.size();
  for (const auto& [call, ns] : found->second) {
    if (call >= line.size()) continue;
    auto& place = places[{line[call].symbol, line[call].occurrence}];
    place.first += ns;
    place.second = call;
  }
  std::pair<uint64_t, size_t> most{0, line.size()};
  for (const auto& [place, time] : places) most = std::max(most, time);
  return most.second;
}

// The doings of other ranks in the same steps: the middle of each activity.
Doings DoingsOfOthers(const Evidence& evidence, const std::vector<uint32_t>& without,
                      const std::vector<size_t>& steps) {
  std::vector<std::vector<uint64_t>> of_others(kActivities);
  size_t at = 0;
  for (const auto& [rank, line] : evidence.timelines.ranks) {
    const size_t place = at++;
    if (std::find(without.begin(), without.end(), rank) != without.end()) continue;
    const Doings its = evidence.doings.In(rank, OwnSpans(evidence, rank, place, steps));
    if (its.seen_ns <= 0) continue;
    for (size_t i = 0; i < kActivities; ++i) {
      of_others[i].push_back(static_cast<uint64_t>(its.ns[i] * its.asked_ns / its.seen_ns));
    }
  }
  Doings middle;
  for (size_t i = 0; i < kActivities; ++i) middle.ns[i] = static_cast<double>(Median(of_others[i]));
  return middle;
}

// The steps in which the rank was looked at; all where there are none.
std::vector<size_t> SeenSteps(const Evidence& evidence, uint32_t rank, size_t at, const std::vector<size_t>& steps) {
  std::vector<size_t> seen;
  for (const size_t step : steps) {
    const Doings its = evidence.doings.In(rank, OwnSpans(evidence, rank, at, {step}));
    if (its.seen_ns >= 0.5 * its.asked_ns) seen.push_back(step);
  }
  return seen.empty() ? steps : seen;
}

size_t PlaceOf(const Evidence& evidence, uint32_t rank) {
  return static_cast<size_t>(std::distance(evidence.timelines.ranks.begin(), evidence.timelines.ranks.find(rank)));
}

}  // namespace

std::optional<Culprit> FindSlowRank(const Evidence& evidence, const std::vector<size_t>& of_steps,
                                    const std::vector<size_t>& usual_steps) {
  if (usual_steps.size() < kFewestForNoise) return std::nullopt;
  const std::vector<size_t> steps = Latest(of_steps);
  std::vector<OwnTimes> all = Measure(evidence, steps, Latest(usual_steps));
  if (all.size() < 2 || steps.empty()) return std::nullopt;
  std::vector<uint64_t> lengths_ns;
  for (const size_t step : steps) lengths_ns.push_back(evidence.steps.all[step].span.length_ns());
  for (OwnTimes& times : all) {
    times.longer_ns = static_cast<double>(times.usual_ns) - static_cast<double>(MedianOfOthers(all, {times.rank}));
  }
  std::sort(all.begin(), all.end(), [](const OwnTimes& a, const OwnTimes& b) { return a.longer_ns > b.longer_ns; });
  const OwnTimes& slowest = all.front();
  double noise_ns = slowest.noise_ns;
  for (const OwnTimes& times : all) noise_ns = std::max(noise_ns, times.noise_ns);
  const double least_ns = std::max(
      {kLeastOfStep * static_cast<double>(Median(lengths_ns)), kNoises * noise_ns, static_cast<double>(kLeastNs)});
  if (slowest.longer_ns < least_ns) return std::nullopt;

  Culprit culprit;
  for (const OwnTimes& times : all) {
    if (times.longer_ns >= kNearlyAsSlow * slowest.longer_ns) culprit.ranks.push_back(times.rank);
  }
  if (culprit.ranks.size() * 2 > all.size()) culprit.ranks.resize(1);  // the others are the quick ones
  OnPath on_path;
  for (const size_t step : steps) AddPath(evidence.PathOf(step), &on_path);
  std::vector<Span> spans;
  std::set<std::string> nodes;
  for (const uint32_t rank : culprit.ranks) {
    const auto own = on_path.own.find(rank);
    if (own != on_path.own.end()) spans.insert(spans.end(), own->second.begin(), own->second.end());
    nodes.insert(evidence.NodeOf(rank));
  }
  evidence.NameWaiting(spans, &culprit);
  culprit.waited_ns /= steps.size();
  if (static_cast<double>(culprit.waited_ns) < kLeastWaited * slowest.longer_ns) return std::nullopt;
  culprit.nodes = {nodes.begin(), nodes.end()};
  culprit.lost_ns = std::min(static_cast<uint64_t>(slowest.longer_ns), culprit.waited_ns);
  evidence.Name(slowest.rank, LongestBefore(evidence, slowest.rank, on_path), &culprit);
  const double next_ns = culprit.ranks.size() < all.size() ? std::max(all[culprit.ranks.size()].longer_ns, 0.0) : 0;
  culprit.sure = ShareOfSlowest(all, culprit.ranks) * (1 - 0.5 * next_ns / slowest.longer_ns);
  const size_t at = PlaceOf(evidence, slowest.rank);
  const std::vector<size_t> seen = SeenSteps(evidence, slowest.rank, at, steps);
  culprit.reason = FindReason(evidence.doings.In(slowest.rank, OwnSpans(evidence, slowest.rank, at, seen)),
                              DoingsOfOthers(evidence, culprit.ranks, seen));
  return culprit;
}

std::optional<Culprit> FindSlowRank(const Evidence& evidence) {
  const Span whole{evidence.timelines.begin_ns, evidence.timelines.end_ns};
  if (evidence.timelines.ranks.size() < 2 || whole.length_ns() == 0) return std::nullopt;
  uint32_t last = 0;
  uint64_t latest_ns = 0;
  for (const auto& [rank, line] : evidence.timelines.ranks) {
    uint64_t end_ns = 0;
    for (const PlacedCall& placed : line) end_ns = std::max(end_ns, placed.call.end_ns);
    if (end_ns <= latest_ns) continue;
    latest_ns = end_ns;
    last = rank;
  }
  OnPath on_path;
  AddPath(evidence.path.Find(last, whole), &on_path);
  std::optional<Culprit> most;
  uint64_t all_ns = 0;
  for (const auto& [rank, spans] : on_path.own) {
    Culprit culprit;
    culprit.ranks = {rank};
    culprit.nodes = {evidence.NodeOf(rank)};
    for (const auto& [other, blocked_ns] : evidence.path.Blocked(spans)) {
      if (other != rank) culprit.lost_ns = std::max(culprit.lost_ns, blocked_ns);
    }
    all_ns += culprit.lost_ns;
    if (most && most->lost_ns >= culprit.lost_ns) continue;
    evidence.NameWaiting(spans, &culprit);
    evidence.Name(rank, LongestBefore(evidence, rank, on_path), &culprit);
    culprit.reason = FindReason(evidence.doings.In(rank, spans), Doings());
    most = std::move(culprit);
  }
  if (!most || static_cast<double>(most->lost_ns) < kLeastOfStep * static_cast<double>(whole.length_ns())) {
    return std::nullopt;
  }
  most->sure = 0.8 * static_cast<double>(most->lost_ns) / static_cast<double>(all_ns);  // nothing usual is known
  return most;
}

double PartInCalls(const Evidence& evidence, const std::vector<size_t>& steps) {
  OnPath on_path;
  for (const size_t step : Latest(steps)) AddPath(evidence.PathOf(step), &on_path);
  return on_path.all_ns == 0 ? 0 : static_cast<double>(on_path.in_calls_ns) / static_cast<double>(on_path.all_ns);
}

}  // namespace cohort::launcher
