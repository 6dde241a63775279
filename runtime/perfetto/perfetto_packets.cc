#include "cohort/runtime/perfetto/perfetto_packets.h"

#include <utility>

#include "cohort/runtime/perfetto/compressed.h"
#include "google/protobuf/io/coded_stream.h"

namespace cohort::runtime {
namespace {

constexpr uint32_t kSequence = 1;  // all packets are one writer's
constexpr uint32_t kStateCleared = 1;
constexpr uint32_t kNeedsState = 2;
constexpr uint32_t kRealTime = 1;
constexpr uint32_t kBootTime = 6;
constexpr uint32_t kByOrder = 3;
constexpr uint32_t kLengthDelimited = 2;  // by the encoding of Protobuf
constexpr size_t kMostTexts = 1u << 16;   // of a kind; later ones are written out

}  // namespace

std::pair<uint64_t, bool> PerfettoPackets::Texts::Find(std::string_view text) {
  const auto at = known.find(text);
  if (at != known.end()) return {at->second, false};
  if (known.size() >= kMostTexts) return {0, false};
  const uint64_t number = known.size() + 1;
  known.emplace(text, number);
  return {number, true};
}

void PerfettoPackets::Begin(uint64_t steady_ns, uint64_t unix_ns) {
  v1::TracePacket packet;
  v1::ClockSnapshot::Clock* clock = packet.mutable_clock_snapshot()->add_clocks();
  clock->set_clock_id(kBootTime);
  clock->set_timestamp(steady_ns);
  clock = packet.mutable_clock_snapshot()->add_clocks();
  clock->set_clock_id(kRealTime);
  clock->set_timestamp(unix_ns);
  Clear(std::move(packet));
}

void PerfettoPackets::BeginBehind() { Clear({}); }

void PerfettoPackets::Clear(v1::TracePacket packet) {
  // Readers skip what stands before the cleared state: what was added before the first file follows it.
  const std::string added_before = state_ == State::kInFile ? "" : std::exchange(packets_, {});
  if (std::exchange(state_, State::kInFile) == State::kInFile) {
    names_ = argument_names_ = argument_values_ = Texts();
    described_.clear();
  }
  packet.set_trusted_packet_sequence_id(kSequence);
  packet.set_sequence_flags(kStateCleared);
  Append(packet);
  packets_ += added_before;
}

void PerfettoPackets::Describe(const Track& track) {
  if (!described_.insert(track.uuid).second) return;
  v1::TracePacket packet;
  packet.set_trusted_packet_sequence_id(kSequence);
  v1::TrackDescriptor& descriptor = *packet.mutable_track_descriptor();
  descriptor.set_uuid(track.uuid);
  descriptor.set_name(track.name);
  descriptor.set_parent_uuid(track.parent);
  descriptor.set_sibling_order_rank(track.order);
  if (track.has_children) descriptor.set_child_ordering(kByOrder);
  Append(packet);
}

v1::TracePacket& PerfettoPackets::Event(v1::TrackEvent::Type type, uint64_t track, uint64_t ns, std::string_view name) {
  event_->arena.Reset();
  v1::TracePacket& packet = *google::protobuf::Arena::CreateMessage<v1::TracePacket>(&event_->arena);
  packet.set_timestamp(ns);
  packet.set_trusted_packet_sequence_id(kSequence);
  packet.set_sequence_flags(kNeedsState);
  packet.mutable_track_event()->set_type(type);
  packet.mutable_track_event()->set_track_uuid(track);
  if (name.empty()) return packet;
  const auto [number, fresh] = names_.Find(name);
  if (number == 0) {
    packet.mutable_track_event()->set_name(name.data(), name.size());
    return packet;
  }
  packet.mutable_track_event()->set_name_iid(number);
  if (!fresh) return packet;
  v1::InternedText* text = packet.mutable_interned_data()->add_event_names();
  text->set_iid(number);
  text->set_text(name.data(), name.size());
  return packet;
}

v1::DebugAnnotation* PerfettoPackets::Annotate(std::string_view name, v1::TracePacket* packet) {
  const auto [number, fresh] = argument_names_.Find(name);
  v1::DebugAnnotation* annotation = packet->mutable_track_event()->add_debug_annotations();
  annotation->set_name_iid(number);
  if (fresh) {
    v1::InternedText* text = packet->mutable_interned_data()->add_debug_annotation_names();
    text->set_iid(number);
    text->set_text(name.data(), name.size());
  }
  return annotation;
}

void PerfettoPackets::AddText(std::string_view name, std::string_view text, v1::TracePacket* packet) {
  v1::DebugAnnotation* annotation = Annotate(name, packet);
  const auto [number, fresh] = argument_values_.Find(text);
  if (number == 0) return annotation->set_string_value(text.data(), text.size());
  annotation->set_string_value_iid(number);
  if (!fresh) return;
  v1::InternedText* interned = packet->mutable_interned_data()->add_debug_annotation_string_values();
  interned->set_iid(number);
  interned->set_text(text.data(), text.size());
}

void PerfettoPackets::AddNumber(std::string_view name, uint64_t number, v1::TracePacket* packet) {
  Annotate(name, packet)->set_uint_value(number);
}

// As a field of a TraceFile. Setting the field would copy the packet.
void PerfettoPackets::Append(const v1::TracePacket& packet) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint32_t kTag = v1::TraceFile::kPacketFieldNumber << 3 | kLengthDelimited;
  std::array<uint8_t, 16> head{};
  uint8_t* end = CodedOutputStream::WriteTagToArray(kTag, head.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(packet.ByteSizeLong()), end);
  packets_.append(head.data(), end);
  packet.AppendToString(&packets_);
}

std::string PerfettoPackets::Take() {
  if (packets_.empty()) return "";
  v1::TraceFile file;
  file.add_packet()->set_compressed_packets(Compress(packets_));
  packets_.clear();
  return file.SerializeAsString();
}

}  // namespace cohort::runtime
