#include "cohort/comm/simulate/steady_state.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "cohort/comm/simulate/event_engine.h"

namespace cohort::comm {

void SteadyState::Restart() {
  seen_ = nullptr;
  seen_at_ = 0;
}

void SteadyState::Look(size_t at, size_t period, int64_t now) {
  if (at < seen_at_ + period) return;
  seen_at_ = at;
  TrySkip(now);
}

void SteadyState::Snapshot(int64_t now, std::vector<int64_t>* state) const {
  state->clear();
  const auto later = [&](EventEngine::Time time) { return std::max<EventEngine::Time>(time - now, 0); };
  const auto first = static_cast<int64_t>(engine_.actors_[0].at);
  state->push_back((first - static_cast<int64_t>(engine_.repetition_->begin)) %
                   static_cast<int64_t>(engine_.repetition_->period));
  for (const EventEngine::Actor& actor : engine_.actors_) {
    state->push_back(static_cast<int64_t>(actor.at) - first);
    state->push_back(later(actor.clock));
    state->push_back(actor.posted - engine_.actors_[0].posted);
    state->push_back(static_cast<int64_t>(actor.last) * 8 + static_cast<int64_t>(actor.blocked) * 2 +
                     (actor.lets ? 1 : 0));
    state->push_back(static_cast<int64_t>(actor.taking) - first);
    state->push_back(later(actor.released));
    for (const EventEngine::Outstanding& send : actor.outstanding) {
      if (send.arrival != EventEngine::kUnknown && send.arrival <= now) continue;
      state->push_back(actor.posted - send.index);
      state->push_back(send.arrival == EventEngine::kUnknown ? -1 : send.arrival - now);
    }
    state->push_back(-2);
  }
  for (const EventEngine::Time free : engine_.link_free_) state->push_back(later(free));
  std::vector<std::tuple<int64_t, uint64_t, int64_t>> pending;
  for (const EventEngine::Event& event : engine_.heap_) {
    const EventEngine::Message& message = engine_.messages_[event.message];
    pending.emplace_back(event.time - now, event.tie, message.index - engine_.actors_[message.actor].posted);
  }
  std::sort(pending.begin(), pending.end());
  for (const auto& [time, tie, index] : pending) state->insert(state->end(), {time, static_cast<int64_t>(tie), index});
  for (const EventEngine::Channel& channel : engine_.channels_) {
    for (const EventEngine::Queue& queue : {channel.posted, channel.arrived}) {
      for (uint32_t i = queue.head; i != EventEngine::kNone; i = engine_.messages_[i].next)
        state->push_back(later(engine_.messages_[i].time));
      state->push_back(-3);
    }
  }
}

void SteadyState::Shift(int64_t by, int64_t operations, int64_t sends) {
  for (EventEngine::Actor& actor : engine_.actors_) {
    actor.at += static_cast<size_t>(operations);
    actor.taking += static_cast<size_t>(operations);
    actor.clock += by;
    actor.released += by;
    actor.posted += sends;
    for (EventEngine::Outstanding& send : actor.outstanding) {
      send.index += sends;
      if (send.arrival != EventEngine::kUnknown) send.arrival += by;
    }
  }
  for (EventEngine::Time& free : engine_.link_free_) free += by;
  for (EventEngine::Event& event : engine_.heap_) {
    event.time += by;
    event.index += sends;
    engine_.messages_[event.message].index += sends;
    engine_.messages_[event.message].time += by;
  }
  for (const EventEngine::Channel& channel : engine_.channels_) {
    for (uint32_t i = channel.posted.head; i != EventEngine::kNone; i = engine_.messages_[i].next) {
      engine_.messages_[i].time += by;
      engine_.messages_[i].index += sends;
    }
    for (uint32_t i = channel.arrived.head; i != EventEngine::kNone; i = engine_.messages_[i].next)
      engine_.messages_[i].time += by;
  }
}

void SteadyState::TrySkip(int64_t now) {
  size_t furthest = 0;
  for (const EventEngine::Actor& actor : engine_.actors_) {
    if (actor.at < engine_.repetition_->begin || actor.at >= engine_.repetition_->end) return;
    furthest = std::max(furthest, actor.at);
  }
  auto seen = std::make_unique<Seen>();
  seen->at = engine_.actors_[0].at;
  seen->now = now;
  seen->posted = engine_.actors_[0].posted;
  seen->messages = engine_.report_.messages;
  seen->wire_bytes = engine_.report_.wire_bytes;
  seen->core_bytes = engine_.report_.core_bytes;
  seen->uplink_use = engine_.uplink_use_;
  Snapshot(now, &seen->state);
  if (seen_ != nullptr && seen_->state == seen->state) {
    const auto operations = static_cast<int64_t>(seen->at - seen_->at);
    const auto times = static_cast<int64_t>(engine_.repetition_->end - furthest) / operations - 1;
    if (times < 1) return;
    const auto factor = static_cast<double>(times);
    engine_.report_.messages += times * (seen->messages - seen_->messages);
    engine_.report_.wire_bytes += factor * (seen->wire_bytes - seen_->wire_bytes);
    engine_.report_.core_bytes += factor * (seen->core_bytes - seen_->core_bytes);
    for (size_t i = 0; i < engine_.uplink_use_.size(); ++i) {
      engine_.uplink_use_[i] += factor * (seen->uplink_use[i] - seen_->uplink_use[i]);
    }
    Shift(times * (now - seen_->now), times * operations, times * (seen->posted - seen_->posted));
    seen_ = nullptr;
    return;
  }
  if (seen_ == nullptr || ++compared_ == compare_) {
    compare_ = seen_ == nullptr ? 1 : 2 * compare_;
    compared_ = 0;
    seen_ = std::move(seen);
  }
}

}  // namespace cohort::comm
