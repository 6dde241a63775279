#include "cohort/launcher/trace/call_meetings.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {
namespace {

enum class Waiting { kAllForLast, kOthersForRoot, kRootForLast, kNone };

Waiting WaitingOf(const v1::CallShape& shape) {
  const std::string_view kind = runtime::CallKindName(static_cast<uint16_t>(shape.kind()));
  if (kind == "broadcast" || kind == "scatter" || kind == "scatter_v") return Waiting::kOthersForRoot;
  if (kind == "reduce" || kind == "gather" || kind == "gather_v") return Waiting::kRootForLast;
  if (kind == "shrink" || kind == "?") return Waiting::kNone;
  return Waiting::kAllForLast;
}

bool IsMessage(const v1::CallShape& shape) { return runtime::IsPointToPoint(static_cast<uint16_t>(shape.kind())); }

bool IsRoot(const TracedCall& call) { return call.shape->root() == call.shape->group_rank(); }

// Whether the call, which came before the one that it may have waited for, cannot have ended before that one had begun.
// Then its record's end counts for nothing: those of short calls are early.
bool EndsAfterCause(const TracedCall& call) {
  return call.state == runtime::CallState::kDone && call.shape->bytes() > 0 && AwaitsOthers(*call.shape);
}

}  // namespace

size_t CallMeetings::KeyHash::operator()(const Key& key) const {
  uint64_t hash = std::get<0>(key);
  for (const uint64_t part : {uint64_t{std::get<1>(key)}, std::get<2>(key), static_cast<uint64_t>(std::get<3>(key)),
                              static_cast<uint64_t>(std::get<4>(key))}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

CallMeetings::Key CallMeetings::KeyOf(const TracedCall& call) {
  const v1::CallShape& shape = *call.shape;
  if (!IsMessage(shape)) return {shape.group(), shape.epoch(), call.sequence, -1, -1};
  const bool sends = runtime::CallKindName(static_cast<uint16_t>(shape.kind())) == "send";
  const int64_t own = call.rank;
  const int64_t other = shape.peer_rank();
  return {shape.group(), shape.epoch(), call.sequence, sends ? own : other, sends ? other : own};
}

void CallMeetings::Add(TracedCall call, Clock::time_point now) {
  const bool message = IsMessage(*call.shape);
  const bool alone =
      message ? call.shape->peer_rank() == static_cast<int32_t>(call.rank) : call.shape->group_size() <= 1;
  if (alone && !message) return on_met_({std::move(call)}, true);
  const size_t expected = message ? 2 : static_cast<size_t>(call.shape->group_size());
  const Key key = KeyOf(call);
  Meeting& meeting = meetings_[key];
  if (meeting.calls.empty()) {
    meeting.number = ++numbers_;
    began_.push_back({key, meeting.number, now});
  }
  meeting.calls.push_back(std::move(call));
  ++waiting_;
  if (meeting.calls.size() == expected) {
    waiting_ -= expected;
    const auto met = meetings_.extract(key);
    on_met_(met.mapped().calls, true);
  }
  while (waiting_ > kMostWaiting || began_.size() > kMostWaiting) GiveUpOldest();
}

void CallMeetings::GiveUpOldest() {
  const Began oldest = began_.front();
  began_.pop_front();
  const auto at = meetings_.find(oldest.key);
  if (at == meetings_.end() || at->second.number != oldest.number) return;  // complete
  waiting_ -= at->second.calls.size();
  const auto met = meetings_.extract(at);
  on_met_(met.mapped().calls, false);
}

void CallMeetings::Expire(Clock::time_point now) {
  while (!began_.empty() && now - began_.front().at > kComeWithin) GiveUpOldest();
}

void CallMeetings::Finish() {
  while (!began_.empty()) GiveUpOldest();
}

std::vector<Waited> FindWaits(const std::vector<TracedCall>& calls, uint64_t least_ns) {
  std::vector<Waited> waits;
  const Waiting rule = WaitingOf(*calls[0].shape);
  if (calls.size() < 2 || rule == Waiting::kNone) return waits;
  const auto begins_before = [](const TracedCall& one, const TracedCall& other) {
    return one.start_ns < other.start_ns;
  };
  auto cause = std::max_element(calls.begin(), calls.end(), begins_before);
  if (rule == Waiting::kOthersForRoot) cause = std::find_if(calls.begin(), calls.end(), IsRoot);
  if (cause == calls.end()) return waits;
  for (size_t i = 0; i < calls.size(); ++i) {
    const TracedCall& call = calls[i];
    if (rule == Waiting::kRootForLast && !IsRoot(call)) continue;
    if (call.start_ns + least_ns >= cause->start_ns) continue;
    if (!EndsAfterCause(call) && call.end_ns <= cause->start_ns) continue;
    waits.push_back({.waiter = i, .cause = static_cast<size_t>(cause - calls.begin())});
  }
  return waits;
}

// Forms with a count for each member are left out: one with nothing to give is not waited for.
bool MeetsAll(const v1::CallShape& shape) {
  const std::string_view kind = runtime::CallKindName(static_cast<uint16_t>(shape.kind()));
  if (kind == "barrier") return true;
  if (shape.bytes() == 0) return false;
  return kind == "all_reduce" || kind == "reduce_scatter" || kind == "all_gather" || kind == "all_to_all";
}

bool AwaitsOthers(const v1::CallShape& shape) {
  if (!IsMessage(shape)) return MeetsAll(shape);
  return shape.bytes() > 0 && runtime::CallKindName(static_cast<uint16_t>(shape.kind())) == "recv";
}

}  // namespace cohort::launcher
