#include "cohort/launcher/trace/trace_packets.h"

#include <algorithm>
#include <cstdio>

#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kJobTrack = 1;
constexpr uint64_t kNodeTracks = uint64_t{1} << 32;
constexpr uint64_t kRankTracks = uint64_t{2} << 32;

std::string Hexadecimal(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

uint64_t TracePackets::JobTrack() {
  packets_.Describe({.uuid = kJobTrack, .name = "job", .order = -1});
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
                     .name = "rank " + std::to_string(rank),
                     .parent = NodeTrack(node, node_name),
                     .order = static_cast<int32_t>(rank)});
  return uuid;
}

bool TracePackets::Add(const Slice& slice) {
  const TracedCall& call = *slice.call;
  const v1::CallShape& shape = *call.shape;
  std::vector<uint64_t>& ends = line_ends_[call.rank];
  const auto free = std::find_if(ends.begin(), ends.end(), [&call](uint64_t end) { return end <= call.start_ns; });
  const size_t line = static_cast<size_t>(free - ends.begin());
  if (line == kMostLines) return false;
  if (free == ends.end()) ends.push_back(0);
  ends[line] = std::max(call.end_ns, call.start_ns);
  const uint64_t track = RankTrack(call.rank, call.node, slice.node, line);

  v1::TracePacket packet = packets_.Event(v1::TrackEvent::TYPE_SLICE_BEGIN, track, call.start_ns,
                                          std::string(runtime::CallKindName(static_cast<uint16_t>(shape.kind()))));
  packets_.AddText("call", shape.call(), &packet);
  if (!shape.site().empty()) packets_.AddText("site", shape.site(), &packet);
  if (!shape.algorithm().empty()) packets_.AddText("algorithm", shape.algorithm(), &packet);
  if (!shape.transports().empty()) packets_.AddText("transports", shape.transports(), &packet);
  packets_.AddNumber("bytes", shape.bytes(), &packet);
  packets_.AddText("group", Hexadecimal(shape.group()), &packet);
  packets_.AddNumber("group size", static_cast<uint64_t>(shape.group_size()), &packet);
  packets_.AddNumber("epoch", shape.epoch(), &packet);
  packets_.AddNumber("sequence", call.sequence, &packet);
  if (shape.device() >= 0 && shape.device() != runtime::kUnknownDevice) {
    packets_.AddNumber("device", static_cast<uint64_t>(shape.device()), &packet);
  }
  if (shape.peer_rank() >= 0) packets_.AddNumber("other rank", static_cast<uint64_t>(shape.peer_rank()), &packet);
  if (call.state == runtime::CallState::kFailed) packets_.AddText("ended", "with an error", &packet);
  if (call.state == runtime::CallState::kStarted) packets_.AddText("ended", "not, as far as is known", &packet);
  if (!slice.complete) packets_.AddText("others", "not all are known", &packet);
  if (slice.waited != 0) {
    packets_.AddNumber("waited for rank", slice.waited_for, &packet);
    packets_.AddNumber("waited ns", slice.waited_ns, &packet);
  }
  for (const uint64_t flow : slice.causes) packet.mutable_track_event()->add_flow_ids(flow);
  packets_.Append(packet);

  v1::TracePacket end = packets_.Event(v1::TrackEvent::TYPE_SLICE_END, track, ends[line]);
  if (slice.waited != 0) end.mutable_track_event()->add_terminating_flow_ids(slice.waited);
  packets_.Append(end);
  return true;
}

void TracePackets::AddEvent(const std::string& name, const std::string& text, uint64_t ns) {
  v1::TracePacket packet = packets_.Event(v1::TrackEvent::TYPE_INSTANT, JobTrack(), ns, name);
  if (!text.empty()) packets_.AddText("text", text, &packet);
  packets_.Append(packet);
}

void TracePackets::AddMissed(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed, uint64_t ns) {
  v1::TracePacket packet =
      packets_.Event(v1::TrackEvent::TYPE_INSTANT, RankTrack(rank, node, node_name, 0), ns, "calls missing");
  packets_.AddNumber("calls", missed, &packet);
  packets_.Append(packet);
}

}  // namespace cohort::launcher
