#include "cohort/launcher/agent/activity/rank_states.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/agent/trace/shared_wake.h"
#include "cohort/runtime/base/clock.h"

namespace cohort::launcher {

namespace {

// Whether the program had a CPU, or was ready for one, nearly all of the time. A look tells more of Python's.
bool IsCounted(const ProcessActivity::State& state) {
  if (!state.place.empty()) return false;
  const uint64_t counted_ns = state.computed_ns + state.queued_ns + state.throttled_ns;
  return static_cast<double>(counted_ns) >= RankStates::kCounted * static_cast<double>(state.length_ns);
}

}  // namespace

RankStates::RankStates(EventLoop* loop, std::vector<uint32_t> ranks, Surroundings surroundings)
    : loop_(loop), world_ranks_(std::move(ranks)), surroundings_(std::move(surroundings)), seen_(world_ranks_.size()) {}

void RankStates::Watch(bool on) {
  loop_->Cancel(std::exchange(timer_, 0));
  seen_.clear();
  seen_.resize(world_ranks_.size());
  begun_ns_ = on ? runtime::SteadyNow() : kNever;
  counted_ = not_counted_ = 0;
  if (!on) return Forget();
  if (sampler_ == nullptr) {
    absl::StatusOr<std::unique_ptr<ActivitySampler>> sampler = ActivitySampler::Start();
    if (!sampler.ok()) return;
    sampler_ = *std::move(sampler);
  }
  LookAtSome();
}

// Nothing of the processes stays open. A look that is not over keeps them until it is, or until the next time.
void RankStates::Forget() {
  if (sampler_ == nullptr) return;
  std::vector<ActivitySampler::Subject> none(world_ranks_.size());
  for (size_t i = 0; i < none.size(); ++i) none[i].number = i;
  (void)sampler_->Look(std::move(none));
}

void RankStates::LookAtSome() {
  TakeSamples();
  const size_t ranks = seen_.size();
  std::vector<ActivitySampler::Subject> subjects;
  for (size_t i = 0; i < std::min(kRanksAtOnce, ranks); ++i) {
    const size_t rank = (next_ + i) % ranks;
    const auto local_rank = static_cast<int>(rank);
    const WatchedProcess process = surroundings_.process_of(local_rank);
    const bool waits = process.pid != 0 && surroundings_.waits(local_rank);  // it has no segment before it has joined
    subjects.push_back({rank, process, waits});
  }
  const size_t count = subjects.size();
  if (sampler_->Look(std::move(subjects))) next_ += count;
  const bool all_counted = counted_ > 0 && not_counted_ == 0;
  counted_ = not_counted_ = 0;
  const std::chrono::milliseconds period = all_counted ? kLookWhileCountedEvery : kLookEvery;
  timer_ = loop_->After(UntilSharedWake(EventLoop::Clock::now(), period), [this] { LookAtSome(); });
}

void RankStates::TakeSamples() {
  if (sampler_ == nullptr) return;
  for (const ActivitySampler::Sample& sample : sampler_->Take()) {
    ++(IsCounted(sample.state) ? counted_ : not_counted_);
    if (sample.state.begin_ns >= begun_ns_) Add(sample.state, &seen_[sample.number]);  // else of the time before
  }
}

void RankStates::Add(const ProcessActivity::State& state, Seen* seen) {
  v1::RankStates& states = seen->states;
  if (states.shape_size() >= kMostStates) return;
  const auto [shape, fresh] = seen->shapes.emplace(std::tuple(state.activity, state.object, state.place),
                                                   static_cast<uint32_t>(states.shapes_size()));
  if (fresh) {
    if (seen->shapes.size() > kMostShapes) return static_cast<void>(seen->shapes.erase(shape));
    v1::StateShape& described = *states.add_shapes();
    described.set_activity(static_cast<uint32_t>(state.activity));
    described.set_object(state.object);
    described.set_place(state.place);
  }
  const int last = states.shape_size() - 1;
  if (last >= 0 && states.shape(last) == shape->second && seen->end_ns == state.begin_ns) {
    states.set_length_ns(last, states.length_ns(last) + state.length_ns);
    states.set_computed_ns(last, states.computed_ns(last) + state.computed_ns);
    states.set_queued_ns(last, states.queued_ns(last) + state.queued_ns);
    states.set_throttled_ns(last, states.throttled_ns(last) + state.throttled_ns);
  } else {
    states.add_shape(shape->second);
    states.add_begin_ns(static_cast<int64_t>(state.begin_ns - std::exchange(seen->begin_ns, state.begin_ns)));
    states.add_length_ns(state.length_ns);
    states.add_computed_ns(state.computed_ns);
    states.add_queued_ns(state.queued_ns);
    states.add_throttled_ns(state.throttled_ns);
  }
  seen->end_ns = state.begin_ns + state.length_ns;
}

void RankStates::Take(v1::TracedCalls* calls) {
  TakeSamples();
  for (size_t i = 0; i < seen_.size(); ++i) {
    Seen& seen = seen_[i];
    if (seen.states.shape().empty()) continue;
    seen.states.set_rank(world_ranks_[i]);
    *calls->add_states() = std::move(seen.states);
    seen.states.Clear();
    seen.shapes.clear();
    seen.begin_ns = 0;
  }
}

}  // namespace cohort::launcher
