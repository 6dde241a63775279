#include "cohort/launcher/trace/trace_packets.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cohort/launcher/trace/compressed.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {
namespace {

constexpr uint32_t kSequence = 1;  // all packets are one writer's
constexpr uint32_t kStateCleared = 1;
constexpr uint32_t kNeedsState = 2;
constexpr uint32_t kRealTime = 1;
constexpr uint32_t kBootTime = 6;
constexpr uint32_t kByOrder = 3;
constexpr size_t kMostTexts = 1u << 16;  // of a kind; later ones are written out

constexpr uint64_t kJobTrack = 1;
constexpr uint64_t kNodeTracks = uint64_t{1} << 32;
constexpr uint64_t kRankTracks = uint64_t{2} << 32;

std::string Hexadecimal(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::pair<uint64_t, bool> TracePackets::Texts::Find(const std::string& text) {
  const auto at = known.find(text);
  if (at != known.end()) return {at->second, false};
  if (known.size() >= kMostTexts) return {0, false};
  const uint64_t number = known.size() + 1;
  known.emplace(text, number);
  return {number, true};
}

void TracePackets::Begin(uint64_t steady_ns, uint64_t unix_ns) {
  // Readers skip what stands before the cleared state: what was added before the first file follows it.
  const std::string added_before = begun_ ? "" : std::exchange(packets_, {});
  if (std::exchange(begun_, true)) {
    names_ = argument_names_ = argument_values_ = Texts();
    described_.clear();
  }
  v1::TracePacket packet;
  packet.set_trusted_packet_sequence_id(kSequence);
  packet.set_sequence_flags(kStateCleared);
  v1::ClockSnapshot::Clock* clock = packet.mutable_clock_snapshot()->add_clocks();
  clock->set_clock_id(kBootTime);
  clock->set_timestamp(steady_ns);
  clock = packet.mutable_clock_snapshot()->add_clocks();
  clock->set_clock_id(kRealTime);
  clock->set_timestamp(unix_ns);
  Append(packet);
  packets_ += added_before;
}

v1::TracePacket TracePackets::Packet(uint64_t ns) const {
  v1::TracePacket packet;
  packet.set_timestamp(ns);
  packet.set_trusted_packet_sequence_id(kSequence);
  packet.set_sequence_flags(kNeedsState);
  return packet;
}

void TracePackets::Append(const v1::TracePacket& packet) {
  v1::TraceFile file;  // one field of it, since it holds one packet
  *file.add_packet() = packet;
  file.AppendToString(&packets_);
}

void TracePackets::Describe(uint64_t uuid, const std::string& name, uint64_t parent, int32_t order, bool has_children) {
  v1::TracePacket packet;
  packet.set_trusted_packet_sequence_id(kSequence);
  v1::TrackDescriptor& track = *packet.mutable_track_descriptor();
  track.set_uuid(uuid);
  track.set_name(name);
  track.set_parent_uuid(parent);
  track.set_sibling_order_rank(order);
  if (has_children) track.set_child_ordering(kByOrder);
  Append(packet);
}

uint64_t TracePackets::JobTrack() {
  if (described_.insert(kJobTrack).second) Describe(kJobTrack, "job", 0, -1);
  return kJobTrack;
}

uint64_t TracePackets::NodeTrack(size_t node, std::string_view name) {
  const uint64_t uuid = kNodeTracks + node;
  if (described_.insert(uuid).second) Describe(uuid, std::string(name), 0, static_cast<int32_t>(node), true);
  return uuid;
}

uint64_t TracePackets::RankTrack(uint32_t rank, size_t node, std::string_view node_name, size_t line) {
  const uint64_t uuid = kRankTracks + rank * kMostLines + line;
  if (described_.insert(uuid).second) {
    // Lines of one name and parent are shown as one track.
    Describe(uuid, "rank " + std::to_string(rank), NodeTrack(node, node_name), static_cast<int32_t>(rank));
  }
  return uuid;
}

void TracePackets::Name(const std::string& name, v1::TracePacket* packet) {
  const auto [number, fresh] = names_.Find(name);
  packet->mutable_track_event()->set_name_iid(number);
  if (!fresh) return;
  v1::InternedText* text = packet->mutable_interned_data()->add_event_names();
  text->set_iid(number);
  text->set_text(name);
}

v1::DebugAnnotation* TracePackets::Annotate(const char* name, v1::TracePacket* packet) {
  const auto [number, fresh] = argument_names_.Find(name);
  v1::DebugAnnotation* annotation = packet->mutable_track_event()->add_debug_annotations();
  annotation->set_name_iid(number);
  if (fresh) {
    v1::InternedText* text = packet->mutable_interned_data()->add_debug_annotation_names();
    text->set_iid(number);
    text->set_text(name);
  }
  return annotation;
}

void TracePackets::AddText(const char* name, const std::string& text, v1::TracePacket* packet) {
  v1::DebugAnnotation* annotation = Annotate(name, packet);
  const auto [number, fresh] = argument_values_.Find(text);
  if (number == 0) return annotation->set_string_value(text);
  annotation->set_string_value_iid(number);
  if (!fresh) return;
  v1::InternedText* interned = packet->mutable_interned_data()->add_debug_annotation_string_values();
  interned->set_iid(number);
  interned->set_text(text);
}

void TracePackets::AddNumber(const char* name, uint64_t number, v1::TracePacket* packet) {
  Annotate(name, packet)->set_uint_value(number);
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

  v1::TracePacket packet = Packet(call.start_ns);
  v1::TrackEvent& event = *packet.mutable_track_event();
  event.set_type(v1::TrackEvent::TYPE_SLICE_BEGIN);
  event.set_track_uuid(track);
  Name(std::string(runtime::CallKindName(static_cast<uint16_t>(shape.kind()))), &packet);
  AddText("call", shape.call(), &packet);
  if (!shape.site().empty()) AddText("site", shape.site(), &packet);
  if (!shape.algorithm().empty()) AddText("algorithm", shape.algorithm(), &packet);
  if (!shape.transports().empty()) AddText("transports", shape.transports(), &packet);
  AddNumber("bytes", shape.bytes(), &packet);
  AddText("group", Hexadecimal(shape.group()), &packet);
  AddNumber("group size", static_cast<uint64_t>(shape.group_size()), &packet);
  AddNumber("epoch", shape.epoch(), &packet);
  AddNumber("sequence", call.sequence, &packet);
  if (shape.device() >= 0) AddNumber("device", static_cast<uint64_t>(shape.device()), &packet);
  if (shape.peer_rank() >= 0) AddNumber("other rank", static_cast<uint64_t>(shape.peer_rank()), &packet);
  if (call.state == runtime::CallState::kFailed) AddText("ended", "with an error", &packet);
  if (call.state == runtime::CallState::kStarted) AddText("ended", "not, as far as is known", &packet);
  if (!slice.complete) AddText("others", "not all are known", &packet);
  if (slice.waited != 0) {
    AddNumber("waited for rank", slice.waited_for, &packet);
    AddNumber("waited ns", slice.waited_ns, &packet);
  }
  for (const uint64_t flow : slice.causes) event.add_flow_ids(flow);
  Append(packet);

  v1::TracePacket end = Packet(ends[line]);
  end.mutable_track_event()->set_type(v1::TrackEvent::TYPE_SLICE_END);
  end.mutable_track_event()->set_track_uuid(track);
  if (slice.waited != 0) end.mutable_track_event()->add_terminating_flow_ids(slice.waited);
  Append(end);
  return true;
}

void TracePackets::AddEvent(const std::string& name, const std::string& text, uint64_t ns) {
  v1::TracePacket packet = Packet(ns);
  packet.mutable_track_event()->set_type(v1::TrackEvent::TYPE_INSTANT);
  packet.mutable_track_event()->set_track_uuid(JobTrack());
  Name(name, &packet);
  if (!text.empty()) AddText("text", text, &packet);
  Append(packet);
}

void TracePackets::AddMissed(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed, uint64_t ns) {
  v1::TracePacket packet = Packet(ns);
  packet.mutable_track_event()->set_type(v1::TrackEvent::TYPE_INSTANT);
  packet.mutable_track_event()->set_track_uuid(RankTrack(rank, node, node_name, 0));
  Name("calls missing", &packet);
  AddNumber("calls", missed, &packet);
  Append(packet);
}

std::string TracePackets::Take() {
  if (packets_.empty()) return "";
  v1::TraceFile file;
  file.add_packet()->set_compressed_packets(Compress(packets_));
  packets_.clear();
  return file.SerializeAsString();
}

}  // namespace cohort::launcher
