#include "cohort/launcher/trace/trace_packets.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {
namespace {

using runtime::TraceWords;

constexpr uint64_t kJobTrack = 1;
constexpr uint64_t kNodeTracks = uint64_t{1} << 32;
constexpr uint64_t kRankTracks = uint64_t{2} << 32;
constexpr uint64_t kStateTracks = uint64_t{1} << 48;
constexpr uint64_t kLongCallTracks = uint64_t{2} << 48;
constexpr uint64_t kRangeTracks = uint64_t{3} << 48;

static_assert(std::size(TraceWords::kLanes) == runtime::kRangeLanes);

std::string Hexadecimal(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string KindOf(const TracedCall& call) {
  return std::string(runtime::CallKindName(static_cast<uint16_t>(call.shape->kind())));
}

}  // namespace

void TracePackets::Begin(uint64_t steady_ns, uint64_t unix_ns) {
  packets_.Begin(steady_ns, unix_ns);
  v1::TracePacket& begin = packets_.Event(v1::TrackEvent::TYPE_INSTANT, JobTrack(), steady_ns, TraceWords::kBegin);
  packets_.AddNumber(TraceWords::kFormat, kTraceFormat, &begin);
  packets_.Append(begin);
}

uint64_t TracePackets::JobTrack() {
  packets_.Describe({.uuid = kJobTrack, .name = TraceWords::kJob, .order = -1});
  return kJobTrack;
}

uint64_t TracePackets::NodeTrack(size_t node, std::string_view name) {
  const uint64_t uuid = kNodeTracks + node;
  if (packets_.Describes(uuid)) return uuid;
  packets_.Describe(
      {.uuid = uuid, .name = std::string(name), .order = static_cast<int32_t>(node), .has_children = true});
  return uuid;
}

uint64_t TracePackets::RankTrack(uint32_t rank, size_t node, std::string_view node_name, size_t line) {
  const uint64_t uuid = kRankTracks + rank * kMostLines + line;
  if (packets_.Describes(uuid)) return uuid;
  packets_.Describe({.uuid = uuid,
                     .name = TraceWords::kRank + std::to_string(rank),
                     .parent = NodeTrack(node, node_name),
                     .order = static_cast<int32_t>(rank)});
  return uuid;
}

uint64_t TracePackets::StateTrack(const RankState& state, std::string_view node_name) {
  return TrackBeside(kStateTracks, state.rank, TraceWords::kOutsideCalls, NodeTrack(state.node, node_name));
}

uint64_t TracePackets::TrackBeside(uint64_t first, uint32_t rank, const char* name, uint64_t node_track) {
  const uint64_t uuid = first + rank;
  if (packets_.Describes(uuid)) return uuid;
  packets_.Describe({.uuid = uuid,
                     .name = TraceWords::kRank + std::to_string(rank) + name,
                     .parent = node_track,
                     .order = static_cast<int32_t>(rank)});
  return uuid;
}

void TracePackets::Describe(const TracedCall& call, v1::TracePacket* packet) {
  const v1::CallShape& shape = *call.shape;
  packets_.AddText(TraceWords::kCall, shape.call(), packet);
  if (!shape.site().empty()) packets_.AddText(TraceWords::kSite, shape.site(), packet);
  if (!shape.algorithm().empty()) packets_.AddText(TraceWords::kAlgorithm, shape.algorithm(), packet);
  if (!shape.transports().empty()) packets_.AddText(TraceWords::kTransports, shape.transports(), packet);
  packets_.AddNumber(TraceWords::kBytes, shape.bytes(), packet);
  packets_.AddText(TraceWords::kGroup, Hexadecimal(shape.group()), packet);
  packets_.AddNumber(TraceWords::kGroupSize, static_cast<uint64_t>(shape.group_size()), packet);
  packets_.AddNumber(TraceWords::kEpoch, shape.epoch(), packet);
  packets_.AddNumber(TraceWords::kSequence, call.sequence, packet);
  if (shape.device() >= 0 && shape.device() != runtime::kUnknownDevice) {
    packets_.AddNumber(TraceWords::kDevice, static_cast<uint64_t>(shape.device()), packet);
  }
  if (shape.peer_rank() >= 0)
    packets_.AddNumber(TraceWords::kOtherRank, static_cast<uint64_t>(shape.peer_rank()), packet);
}

bool TracePackets::LatestRanges::Cross(uint64_t start_ns, uint64_t end_ns) const {
  return std::any_of(spans.begin(), spans.end(), [start_ns, end_ns](const auto& span) {
    return (span.first < start_ns && start_ns < span.second && span.second < end_ns) ||
           (start_ns < span.first && span.first < end_ns && end_ns < span.second);
  });
}

void TracePackets::LatestRanges::Add(uint64_t start_ns, uint64_t end_ns) {
  spans[next] = {start_ns, end_ns};
  next = (next + 1) % spans.size();
}

std::optional<uint64_t> TracePackets::RangeTrack(const TracedRange& range, std::string_view node_name) {
  const auto lane = static_cast<uint64_t>(range.lane);
  const uint64_t line = (range.rank * uint64_t{runtime::kRangeLanes} + lane) * runtime::kRangeLines + range.line;
  for (uint64_t beside = 0; beside < kMostTracksOfLine; ++beside) {
    const uint64_t uuid = kRangeTracks + line * kMostTracksOfLine + beside;
    LatestRanges& latest = latest_ranges_[uuid];
    if (latest.Cross(range.start_ns, range.end_ns)) continue;
    latest.Add(range.start_ns, range.end_ns);
    if (packets_.Describes(uuid)) return uuid;
    packets_.Describe({.uuid = uuid,
                       .name = TraceWords::kRank + std::to_string(range.rank) + TraceWords::kLanes[lane],
                       .parent = NodeTrack(range.node, node_name),
                       .order = static_cast<int32_t>(range.rank)});
    return uuid;
  }
  return std::nullopt;
}

bool TracePackets::Add(const Slice& slice) {
  const TracedCall& call = *slice.call;
  std::vector<uint64_t>& ends = line_ends_[call.rank];
  const auto free = std::find_if(ends.begin(), ends.end(), [&call](uint64_t end) { return end <= call.start_ns; });
  const size_t line = static_cast<size_t>(free - ends.begin());
  if (line == kMostLines) return false;
  if (free == ends.end()) ends.push_back(0);
  ends[line] = std::max(call.end_ns, call.start_ns);
  const uint64_t track = RankTrack(call.rank, call.node, slice.node, line);

  v1::TracePacket& packet = packets_.Event(v1::TrackEvent::TYPE_SLICE_BEGIN, track, call.start_ns, KindOf(call));
  Describe(call, &packet);
  if (call.state == runtime::CallState::kFailed) packets_.AddText(TraceWords::kEnded, TraceWords::kWithError, &packet);
  if (call.state == runtime::CallState::kStarted) packets_.AddText(TraceWords::kEnded, TraceWords::kNotEnded, &packet);
  if (!slice.complete) packets_.AddText(TraceWords::kOthers, "not all are known", &packet);
  if (slice.waited != 0) {
    packets_.AddNumber("waited for rank", slice.waited_for, &packet);
    packets_.AddNumber("waited ns", slice.waited_ns, &packet);
  }
  for (const uint64_t flow : slice.causes) packet.mutable_track_event()->add_flow_ids(flow);
  packets_.Append(packet);

  v1::TracePacket& end = packets_.Event(v1::TrackEvent::TYPE_SLICE_END, track, ends[line]);
  // By clocks that are a little apart the flow may begin later. A terminating one would be dropped then.
  if (slice.waited != 0) end.mutable_track_event()->add_flow_ids(slice.waited);
  packets_.Append(end);
  return true;
}

void TracePackets::AddOpen(const TracedCall& call, std::string_view node) {
  const uint64_t track = TrackBeside(kLongCallTracks, call.rank, TraceWords::kLongCalls, NodeTrack(call.node, node));
  v1::TracePacket& packet = packets_.Event(v1::TrackEvent::TYPE_INSTANT, track, call.end_ns, TraceWords::kGoesOn);
  packets_.AddText(TraceWords::kOperation, KindOf(call), &packet);
  packets_.AddNumber(TraceWords::kBegan, call.start_ns, &packet);
  Describe(call, &packet);
  packets_.Append(packet);
}

void TracePackets::AddState(const RankState& state, std::string_view node) {
  const uint64_t track = StateTrack(state, node);
  uint64_t& latest = state_ends_[state.rank];
  const uint64_t begin_ns = std::max(state.begin_ns, latest);  // clocks of nodes may have moved between the two
  if (state.end_ns <= begin_ns) return;
  latest = state.end_ns;
  v1::TracePacket& packet =
      packets_.Event(v1::TrackEvent::TYPE_SLICE_BEGIN, track, begin_ns, ActivityName(state.activity()));
  if (!state.shape->object().empty()) packets_.AddText(TraceWords::kObject, state.shape->object(), &packet);
  if (!state.shape->place().empty()) packets_.AddText(TraceWords::kPlace, state.shape->place(), &packet);
  packets_.AddNumber(TraceWords::kComputed, state.computed_ns, &packet);
  if (state.queued_ns > 0) packets_.AddNumber(TraceWords::kQueued, state.queued_ns, &packet);
  if (state.throttled_ns > 0) packets_.AddNumber(TraceWords::kThrottled, state.throttled_ns, &packet);
  packets_.Append(packet);
  packets_.Append(packets_.Event(v1::TrackEvent::TYPE_SLICE_END, track, latest));
}

bool TracePackets::AddRange(const TracedRange& range, std::string_view node) {
  const std::optional<uint64_t> track = RangeTrack(range, node);
  if (!track) return false;
  v1::TracePacket& packet = packets_.Event(v1::TrackEvent::TYPE_SLICE_BEGIN, *track, range.start_ns, range.name);
  if (range.number != runtime::kNoNumber) packets_.AddNumber(TraceWords::kNumber, range.number, &packet);
  packets_.Append(packet);
  packets_.Append(packets_.Event(v1::TrackEvent::TYPE_SLICE_END, *track, std::max(range.end_ns, range.start_ns)));
  return true;
}

void TracePackets::AddStep(const StepMark& mark, size_t node, std::string_view node_name) {
  AddCount(RankTrack(mark.rank, node, node_name, 0), mark.ns, TraceWords::kStep, TraceWords::kNumber, mark.number);
}

void TracePackets::AddEvent(const std::string& name, const std::string& text, uint64_t ns) {
  v1::TracePacket& packet = packets_.Event(v1::TrackEvent::TYPE_INSTANT, JobTrack(), ns, name);
  if (!text.empty()) packets_.AddText(TraceWords::kText, text, &packet);
  packets_.Append(packet);
}

void TracePackets::AddMissed(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed, uint64_t ns) {
  AddCount(RankTrack(rank, node, node_name, 0), ns, TraceWords::kMissing, TraceWords::kCalls, missed);
}

void TracePackets::AddMissedRanges(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed,
                                   uint64_t ns) {
  AddCount(RankTrack(rank, node, node_name, 0), ns, TraceWords::kRangesMissing, TraceWords::kRanges, missed);
}

void TracePackets::AddCount(uint64_t track, uint64_t ns, const char* name, const char* counted, uint64_t count) {
  v1::TracePacket& packet = packets_.Event(v1::TrackEvent::TYPE_INSTANT, track, ns, name);
  packets_.AddNumber(counted, count, &packet);
  packets_.Append(packet);
}

}  // namespace cohort::launcher
