#include "cohort/launcher/verdict/reason.h"

#include <algorithm>

namespace cohort::launcher {
namespace {

constexpr double kLeastSeen = 0.3;  // of a time, or nothing is said of it

size_t At(Activity activity) { return static_cast<size_t>(activity); }

// Not seen on a CPU.
bool IsOffCpu(Activity activity) {
  return activity != Activity::kUnknown && activity != Activity::kComputes && activity != Activity::kCollects;
}

std::string MostSeen(const std::map<std::string, double>& texts) {
  const auto most = std::max_element(texts.begin(), texts.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  return most == texts.end() ? "" : most->first;
}

}  // namespace

double Doings::held_up_ns() const {
  double sum = 0;
  for (const Activity activity :
       {Activity::kStopped, Activity::kDebugged, Activity::kThrottled, Activity::kQueued, Activity::kSwaps}) {
    sum += of(activity);
  }
  return sum;
}

RankDoings::RankDoings(const std::vector<RankState>& states) {
  for (const RankState& state : states) {
    states_[state.rank].push_back(&state);
    latest_ns_ = std::max(latest_ns_, state.end_ns);
  }
  for (auto& [rank, its] : states_) {
    std::stable_sort(its.begin(), its.end(),
                     [](const RankState* one, const RankState* other) { return one->begin_ns < other->begin_ns; });
  }
}

Doings RankDoings::In(uint32_t rank, const std::vector<Span>& spans) const {
  Doings doings;
  const auto found = states_.find(rank);
  double rest_ns = 0, off_ns = 0;
  std::array<double, kActivities> off{};
  for (const Span& span : spans) {
    doings.asked_ns += static_cast<double>(span.length_ns());
    if (found == states_.end()) continue;
    const std::vector<const RankState*>& states = found->second;
    auto at = std::upper_bound(states.begin(), states.end(), span.begin_ns,
                               [](uint64_t ns, const RankState* one) { return ns < one->end_ns; });
    for (; at != states.end() && (*at)->begin_ns < span.end_ns; ++at) {
      const RankState& state = **at;
      const Span whole{state.begin_ns, state.end_ns};
      const auto part_ns = static_cast<double>(whole.In(span).length_ns());
      if (part_ns <= 0) continue;
      const double share = part_ns / static_cast<double>(whole.length_ns());
      const double computed_ns = share * static_cast<double>(state.computed_ns);
      const double queued_ns = share * static_cast<double>(state.queued_ns);
      const double throttled_ns = share * static_cast<double>(state.throttled_ns);
      const Activity activity = state.activity();
      doings.seen_ns += part_ns;
      doings.ns[At(activity == Activity::kCollects ? activity : Activity::kComputes)] += computed_ns;
      doings.ns[At(Activity::kQueued)] += queued_ns;
      doings.ns[At(Activity::kThrottled)] += throttled_ns;
      rest_ns += std::max(0.0, part_ns - computed_ns - queued_ns - throttled_ns);
      if (IsOffCpu(activity)) {
        off[At(activity)] += part_ns;
        off_ns += part_ns;
      }
      if (!state.shape->object().empty()) doings.objects[At(activity)][state.shape->object()] += part_ns;
      if (!state.shape->place().empty()) doings.places[At(activity)][state.shape->place()] += part_ns;
    }
  }
  if (off_ns <= 0) {
    doings.ns[At(Activity::kUnknown)] += rest_ns;
    return doings;
  }
  for (size_t i = 0; i < kActivities; ++i) doings.ns[i] += rest_ns * off[i] / off_ns;
  return doings;
}

Reason FindReason(const Doings& doings, const Doings& usual) {
  Reason reason;
  reason.seen = doings.asked_ns > 0 ? doings.seen_ns / doings.asked_ns : 0;
  if (reason.seen < kLeastSeen) return reason;
  size_t most = 0;
  double sum = 0;
  std::array<double, kActivities> beyond{};
  for (size_t i = 0; i < kActivities; ++i) {
    beyond[i] = std::max(0.0, doings.ns[i] - usual.ns[i]);
    sum += beyond[i];
    if (beyond[i] > beyond[most]) most = i;
  }
  if (sum <= 0) return reason;
  reason.activity = static_cast<Activity>(most);
  reason.ns = beyond[most];
  reason.sure = beyond[most] / sum * std::min(1.0, reason.seen);
  reason.object = MostSeen(doings.objects[most]);
  reason.place = MostSeen(doings.places[most]);
  for (size_t i = 0; i < kActivities && reason.place.empty(); ++i) reason.place = MostSeen(doings.places[i]);
  return reason;
}

}  // namespace cohort::launcher
