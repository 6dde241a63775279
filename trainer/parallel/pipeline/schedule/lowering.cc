#include "cohort/trainer/parallel/pipeline/schedule/lowering.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

namespace cohort::trainer {
namespace {

// A receive, and the place in its rank's order of the pass that it comes before.
struct Arrival {
  int64_t made = 0;  // when the message was
  size_t before = 0;
  Action receive;
};

// The message that a pass makes; false if it makes none.
bool MessageOf(const Schedule& schedule, const Action& pass, Action* send) {
  switch (pass.kind) {
    case ActionKind::kForward:
      *send = {ActionKind::kSendForward, pass.stage, pass.micro_batch};
      break;
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
      *send = {ActionKind::kSendBackward, pass.stage, pass.micro_batch};
      break;
    default:
      return false;
  }
  const int other = OtherEnd(*send).stage;
  return other >= 0 && other < schedule.stages && schedule.PeerOf(*send) != schedule.RankOf(*send);
}

// By rank, in the order in which they were made.
std::vector<std::vector<Arrival>> PlaceReceives(const Schedule& schedule, const Timing& timing) {
  std::vector<std::vector<Arrival>> arrivals(schedule.by_rank.size());
  for (size_t rank = 0; rank < arrivals.size(); ++rank) {
    for (size_t at = 0; at < schedule.by_rank[rank].size(); ++at) {
      Action send;
      if (!MessageOf(schedule, schedule.by_rank[rank][at], &send)) continue;
      const int64_t made = timing.by_rank[rank][at].end;
      const auto peer = static_cast<size_t>(schedule.PeerOf(send));
      const auto& passes = timing.by_rank[peer];
      const auto first = std::lower_bound(passes.begin(), passes.end(), made,
                                          [](const Span& pass, int64_t time) { return pass.begin < time; });
      arrivals[peer].push_back({made, static_cast<size_t>(first - passes.begin()), OtherEnd(send)});
    }
  }
  for (auto& each : arrivals) {
    std::stable_sort(each.begin(), each.end(), [](const Arrival& a, const Arrival& b) { return a.made < b.made; });
  }
  return arrivals;
}

// The places of each stage's first and last pass in its rank's order.
struct Uses {
  std::vector<size_t> first, last;
};

Uses UsesOf(const Schedule& schedule) {
  const auto stages = static_cast<size_t>(schedule.stages);
  Uses uses{std::vector<size_t>(stages, SIZE_MAX), std::vector<size_t>(stages, SIZE_MAX)};
  for (const auto& order : schedule.by_rank) {
    for (size_t at = 0; at < order.size(); ++at) {
      const auto stage = static_cast<size_t>(order[at].stage);
      if (uses.first[stage] == SIZE_MAX) uses.first[stage] = at;
      uses.last[stage] = at;
    }
  }
  return uses;
}

}  // namespace

absl::StatusOr<Schedule> Lower(Schedule schedule) {
  COHORT_ASSIGN_OR_RETURN(const Timing timing, SimulateSchedule(schedule, Costs()));
  const std::vector<std::vector<Arrival>> arrivals = PlaceReceives(schedule, timing);
  const Uses uses = UsesOf(schedule);
  for (size_t rank = 0; rank < arrivals.size(); ++rank) {
    const std::vector<Action> order = std::move(schedule.by_rank[rank]);
    auto arrival = arrivals[rank].begin();
    std::vector<Action> all;
    all.reserve(order.size() * 3 + 6);
    for (size_t at = 0; at <= order.size(); ++at) {
      Action send;
      if (at > 0 && MessageOf(schedule, order[at - 1], &send)) all.push_back(send);
      for (; arrival != arrivals[rank].end() && arrival->before == at; ++arrival) all.push_back(arrival->receive);
      if (at > 0 && uses.last[static_cast<size_t>(order[at - 1].stage)] == at - 1) {
        all.push_back({ActionKind::kReduce, order[at - 1].stage, 0});
        all.push_back({ActionKind::kReshard, order[at - 1].stage, 0});
      }
      if (at == order.size()) break;
      if (uses.first[static_cast<size_t>(order[at].stage)] == at) {
        all.push_back({ActionKind::kUnshard, order[at].stage, 0});
      }
      all.push_back(order[at]);
    }
    schedule.by_rank[rank] = std::move(all);
  }
  return schedule;
}

absl::StatusOr<Schedule> ForwardOnly(const Schedule& schedule) {
  const auto keep = [](Schedule& from, auto wanted) {
    for (auto& actions : from.by_rank) {
      actions.erase(
          std::remove_if(actions.begin(), actions.end(), [&](const Action& action) { return !wanted(action.kind); }),
          actions.end());
    }
  };
  Schedule forward = schedule;
  keep(forward, [](ActionKind kind) { return kind == ActionKind::kForward; });
  COHORT_ASSIGN_OR_RETURN(forward, Lower(std::move(forward)));
  keep(forward, [](ActionKind kind) { return kind != ActionKind::kReduce; });
  return forward;
}

}  // namespace cohort::trainer
