// The shortcut over repeating stretches of a plan: once the state of all actors, messages and links is that of some
// operations ago, shifted in time, everything goes on at that pace until the stretch ends.
#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "cohort/comm/simulate/event_engine.h"

namespace cohort::comm {
void EventEngine::Snapshot(Time now, std::vector<int64_t>* state) const {
  state->clear();
  const auto later = [&](Time time) { return std::max<Time>(time - now, 0); };
  const auto first = static_cast<int64_t>(actors_[0].at);
  state->push_back((first - static_cast<int64_t>(repetition_->begin)) % static_cast<int64_t>(repetition_->period));
  for (const Actor& actor : actors_) {
    state->push_back(static_cast<int64_t>(actor.at) - first);
    state->push_back(later(actor.clock));
    state->push_back(actor.posted - actors_[0].posted);
    state->push_back(static_cast<int64_t>(actor.last) * 8 + static_cast<int64_t>(actor.blocked) * 2 +
                     (actor.lets ? 1 : 0));
    state->push_back(static_cast<int64_t>(actor.taking) - first);
    state->push_back(later(actor.released));
    for (const Outstanding& send : actor.outstanding) {
      if (send.arrival != kUnknown && send.arrival <= now) continue;
      state->push_back(actor.posted - send.index);
      state->push_back(send.arrival == kUnknown ? -1 : send.arrival - now);
    }
    state->push_back(-2);
  }
  for (const Time free : link_free_) state->push_back(later(free));
  std::vector<std::tuple<Time, uint64_t, int64_t>> pending;
  for (const Event& event : heap_) {
    const Message& message = messages_[event.message];
    pending.emplace_back(event.time - now, event.tie, message.index - actors_[message.actor].posted);
  }
  std::sort(pending.begin(), pending.end());
  for (const auto& [time, tie, index] : pending) state->insert(state->end(), {time, static_cast<int64_t>(tie), index});
  for (const Channel& channel : channels_) {
    for (const Queue& queue : {channel.posted, channel.arrived}) {
      for (uint32_t i = queue.head; i != kNone; i = messages_[i].next) state->push_back(later(messages_[i].time));
      state->push_back(-3);
    }
  }
}

void EventEngine::Shift(Time by, int64_t operations, int64_t sends) {
  for (Actor& actor : actors_) {
    actor.at += static_cast<size_t>(operations);
    actor.taking += static_cast<size_t>(operations);
    actor.clock += by;
    actor.released += by;
    actor.posted += sends;
    for (Outstanding& send : actor.outstanding) {
      send.index += sends;
      if (send.arrival != kUnknown) send.arrival += by;
    }
  }
  for (Time& free : link_free_) free += by;
  for (Event& event : heap_) {
    event.time += by;
    event.index += sends;
    messages_[event.message].index += sends;
    messages_[event.message].time += by;
  }
  for (const Channel& channel : channels_) {
    for (uint32_t i = channel.posted.head; i != kNone; i = messages_[i].next) {
      messages_[i].time += by;
      messages_[i].index += sends;
    }
    for (uint32_t i = channel.arrived.head; i != kNone; i = messages_[i].next) messages_[i].time += by;
  }
}

void EventEngine::TrySkip(Time now) {
  size_t furthest = 0;
  for (const Actor& actor : actors_) {
    if (actor.at < repetition_->begin || actor.at >= repetition_->end) return;
    furthest = std::max(furthest, actor.at);
  }
  auto seen = std::make_unique<Seen>();
  seen->at = actors_[0].at;
  seen->now = now;
  seen->posted = actors_[0].posted;
  seen->messages = report_.messages;
  seen->wire_bytes = report_.wire_bytes;
  seen->core_bytes = report_.core_bytes;
  seen->uplink_use = uplink_use_;
  Snapshot(now, &seen->state);
  if (seen_ != nullptr && seen_->state == seen->state) {
    const auto operations = static_cast<int64_t>(seen->at - seen_->at);
    const auto times = static_cast<int64_t>(repetition_->end - furthest) / operations - 1;
    if (times < 1) return;
    const auto factor = static_cast<double>(times);
    report_.messages += times * (seen->messages - seen_->messages);
    report_.wire_bytes += factor * (seen->wire_bytes - seen_->wire_bytes);
    report_.core_bytes += factor * (seen->core_bytes - seen_->core_bytes);
    for (size_t i = 0; i < uplink_use_.size(); ++i) {
      uplink_use_[i] += factor * (seen->uplink_use[i] - seen_->uplink_use[i]);
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
