#include "cohort/launcher/verdict/timelines.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <utility>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {
namespace {

uint64_t Mix(uint64_t hash, uint64_t part) {
  hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

// Sizes are no part of it, since they may change from step to step, unless nothing else tells calls apart.
uint64_t SymbolOf(const v1::CallShape& shape) {
  const bool message = runtime::IsPointToPoint(static_cast<uint16_t>(shape.kind()));
  uint64_t hash = Mix(shape.kind() + 1, shape.group());
  hash = Mix(hash, static_cast<uint64_t>(message ? shape.peer_rank() : shape.root()));
  hash = Mix(hash, std::hash<std::string>()(shape.site()));
  return shape.site().empty() ? Mix(hash, shape.bytes()) : hash;
}

class Placer {
 public:
  Placer(const History& history, uint64_t least_ns)
      : history_(history),
        least_ns_(least_ns),
        meetings_([this](const auto& calls, bool complete) { OnMet(calls, complete); }) {}

  Timelines Place() {
    std::vector<const TracedCall*> calls;
    for (const TracedCall& call : history_.calls) calls.push_back(&call);
    // By time, so that the members of a call come together.
    std::stable_sort(calls.begin(), calls.end(),
                     [](const TracedCall* one, const TracedCall* other) { return one->start_ns < other->start_ns; });
    for (const TracedCall* call : calls) meetings_.Add(*call, CallMeetings::Clock::time_point());
    meetings_.Finish();
    for (auto& [rank, line] : found_.ranks) Sort(&line, &places_[rank]);
    ResolveCauses();
    for (auto& [rank, line] : found_.ranks) FindOwnTimes(&line);
    FindBlocks();
    return std::move(found_);
  }

 private:
  void OnMet(const std::vector<TracedCall>& calls, bool complete) {
    std::vector<CallName> names;
    for (const TracedCall& call : calls) {
      std::vector<PlacedCall>& line = found_.ranks[call.rank];
      names.push_back({call.rank, line.size()});
      line.push_back({.call = call, .symbol = SymbolOf(*call.shape), .meeting = found_.meetings.size()});
      found_.end_ns = std::max(found_.end_ns, call.end_ns);
    }
    if (complete) {
      for (const Waited& wait : FindWaits(calls, least_ns_)) {
        PlacedCall& waiter = found_.ranks[names[wait.waiter].rank][names[wait.waiter].index];
        const TracedCall& cause = calls[wait.cause];
        waiter.waited = true;
        waiter.release_ns = ReleaseOf(waiter.call, cause);
        waiter.cause_rank = cause.rank;
        waiter.cause = names[wait.cause].index;  // until the lines are sorted
        waiter.call.end_ns = std::max(waiter.call.end_ns, waiter.release_ns);
      }
    }
    found_.meetings.push_back(std::move(names));
  }

  // `places`: the index of each call that had the index before.
  static void Sort(std::vector<PlacedCall>* line, std::vector<size_t>* places) {
    std::vector<size_t> order(line->size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [line](size_t one, size_t other) {
      return (*line)[one].call.start_ns < (*line)[other].call.start_ns;
    });
    places->resize(order.size());
    std::vector<PlacedCall> sorted;
    sorted.reserve(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      (*places)[order[i]] = i;
      sorted.push_back(std::move((*line)[order[i]]));
    }
    *line = std::move(sorted);
  }

  void ResolveCauses() {
    for (std::vector<CallName>& meeting : found_.meetings) {
      for (CallName& name : meeting) name.index = places_[name.rank][name.index];
    }
    found_.begin_ns = found_.end_ns;
    for (auto& [rank, line] : found_.ranks) {
      found_.begin_ns = std::min(found_.begin_ns, line.front().call.start_ns);
      for (PlacedCall& placed : line) {
        if (placed.waited) placed.cause = places_[placed.cause_rank][placed.cause];
      }
    }
  }

  // A rank is free from the latest end or start of its earlier calls on, and at the beginning. A call that has not
  // ended by then runs beside.
  void FindOwnTimes(std::vector<PlacedCall>* line) const {
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> running;  // their ends
    uint64_t free_ns = found_.begin_ns;
    for (PlacedCall& placed : *line) {
      const uint64_t start_ns = placed.call.start_ns;
      for (; !running.empty() && running.top() <= start_ns; running.pop()) free_ns = std::max(free_ns, running.top());
      placed.own_begin_ns = std::min(free_ns, start_ns);
      free_ns = std::max(free_ns, start_ns);
      running.push(std::max(placed.call.end_ns, start_ns));
    }
  }

  // A rank that has begun another call since was not blocked before that.
  void FindBlocks() {
    for (auto& [rank, line] : found_.ranks) {
      for (PlacedCall& placed : line) {
        if (!placed.waited) continue;
        const auto later = std::upper_bound(line.begin(), line.end(), placed.release_ns,
                                            [](uint64_t ns, const PlacedCall& one) { return ns < one.call.start_ns; });
        const uint64_t latest_ns = later == line.begin() ? placed.call.start_ns : (later - 1)->call.start_ns;
        placed.blocked_ns = std::min(std::max(placed.call.start_ns, latest_ns), placed.release_ns);
      }
    }
  }

  const History& history_;
  const uint64_t least_ns_;
  Timelines found_;
  std::map<uint32_t, std::vector<size_t>> places_;
  CallMeetings meetings_;
};

}  // namespace

Span Span::In(const Span& other) const { return {std::max(begin_ns, other.begin_ns), std::min(end_ns, other.end_ns)}; }

Timelines PlaceCalls(const History& history, uint64_t least_ns) { return Placer(history, least_ns).Place(); }

}  // namespace cohort::launcher
