#include "cohort/runtime/perfetto/perfetto_reader.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "cohort/runtime/perfetto/compressed.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"

namespace cohort::runtime {
namespace {

constexpr uint32_t kPacketTag = 1 << 3 | 2;  // TraceFile::packet
constexpr uint32_t kClearsTexts = 1;         // TracePacket::sequence_flags
constexpr size_t kEntryBytes = 96;           // of a text or track in memory, beside its characters

std::string TextOf(const std::unordered_map<uint64_t, std::string>& texts, uint64_t number) {
  const auto at = texts.find(number);
  return at == texts.end() ? "" : at->second;
}

}  // namespace

size_t PerfettoReader::Event::bytes() const {
  size_t sum = kEntryBytes + name.size();
  for (const auto& [name_of, value] : arguments) sum += kEntryBytes + name_of.size() + value.size();
  return sum;
}

absl::Status PerfettoReader::Broken(const std::string& name, const char* otherwise) const {
  if (whole_bytes_ == 0) return absl::InvalidArgumentError(name + otherwise);
  return absl::DataLossError(name + " is damaged behind byte " + std::to_string(whole_bytes_));
}

absl::Status PerfettoReader::Read(const std::string& path, const OnEvent& on_event, const std::string& name) {
  const std::string& shown = name.empty() ? path : name;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(shown + ": " + std::strerror(errno));
  google::protobuf::io::IstreamInputStream input(&file);
  for (;;) {
    google::protobuf::io::CodedInputStream coded(&input);  // one for each packet, since its total is limited
    const uint32_t tag = coded.ReadTag();
    uint32_t size = 0;
    if (tag == 0 && coded.ConsumedEntireMessage()) return absl::OkStatus();
    if (tag != kPacketTag) return Broken(shown, " is no trace");
    cut_ = !coded.ReadVarint32(&size);
    if (cut_) return absl::OkStatus();
    if (size > kMostPacketBytes) return Broken(shown, " is no trace");
    std::string bytes;
    cut_ = !coded.ReadString(&bytes, static_cast<int>(size));
    if (cut_) return absl::OkStatus();
    v1::TracePacket packet;
    if (!packet.ParseFromString(bytes) || !Take(packet, on_event)) {
      return Broken(shown, " is no trace, or a damaged one");
    }
    whole_bytes_ += static_cast<uint64_t>(coded.CurrentPosition());
  }
}

bool PerfettoReader::Take(const v1::TracePacket& packet, const OnEvent& on_event) {
  if (!packet.compressed_packets().empty()) {
    const std::optional<std::string> bytes = Uncompress(packet.compressed_packets(), kMostUncompressedBytes);
    v1::TraceFile inside;
    if (!bytes || !inside.ParseFromString(*bytes)) return false;
    for (const v1::TracePacket& one : inside.packet()) {
      if (!one.compressed_packets().empty() || !Take(one, on_event)) return false;
    }
    return true;
  }
  if ((packet.sequence_flags() & kClearsTexts) != 0) {
    names_ = argument_names_ = argument_values_ = {};
    text_bytes_ = 0;
  }
  const v1::InternedData& texts = packet.interned_data();
  Intern(texts.event_names(), &names_);
  Intern(texts.debug_annotation_names(), &argument_names_);
  Intern(texts.debug_annotation_string_values(), &argument_values_);
  if (packet.has_track_descriptor()) {
    const v1::TrackDescriptor& track = packet.track_descriptor();
    tracks_[track.uuid()] = {.name = track.name(), .parent = track.parent_uuid()};
    track_bytes_ += kEntryBytes + track.name().size();
  }
  if (text_bytes_ + track_bytes_ > kMostTextBytes) return false;
  if (!packet.has_track_event()) return true;
  const std::optional<Event> event = EventOf(packet);
  if (event) on_event(*event);
  return event.has_value();
}

void PerfettoReader::Intern(const google::protobuf::RepeatedPtrField<v1::InternedText>& from, Texts* to) {
  for (const v1::InternedText& text : from) {
    (*to)[text.iid()] = text.text();
    text_bytes_ += kEntryBytes + text.text().size();
  }
}

std::optional<PerfettoReader::Event> PerfettoReader::EventOf(const v1::TracePacket& packet) const {
  const v1::TrackEvent& event = packet.track_event();
  Event read{.type = event.type(),
             .track = event.track_uuid(),
             .ns = packet.timestamp(),
             .name = event.name(),
             .arguments = {}};
  if (event.name_iid() != 0) read.name = TextOf(names_, event.name_iid());
  size_t bytes = read.name.size();
  for (const v1::DebugAnnotation& argument : event.debug_annotations()) {
    std::string& value = read.arguments[TextOf(argument_names_, argument.name_iid())];
    switch (argument.value_case()) {
      case v1::DebugAnnotation::kStringValueIid:
        value = TextOf(argument_values_, argument.string_value_iid());
        break;
      case v1::DebugAnnotation::kStringValue:
        value = argument.string_value();
        break;
      case v1::DebugAnnotation::kUintValue:
        value = std::to_string(argument.uint_value());
        break;
      case v1::DebugAnnotation::kIntValue:
        value = std::to_string(argument.int_value());
        break;
      case v1::DebugAnnotation::VALUE_NOT_SET:
        break;
    }
    bytes += kEntryBytes + value.size();
    if (bytes > kMostEventBytes) return std::nullopt;
  }
  return read;
}

}  // namespace cohort::runtime
