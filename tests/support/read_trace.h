// Reads a trace of `dlaunch --trace` as Perfetto does: packets one after another, compressed ones inside, texts by
// their numbers, slices by their tracks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/perfetto/trace_words.h"
#include "cohort/v1/trace_file.pb.h"

namespace cohort::launcher {

struct ReadSlice {
  std::string node, track, name;
  std::map<std::string, std::string> arguments;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  std::vector<uint64_t> causes;  // flows that begin at it
  std::vector<uint64_t> waited;  // flows that end at it
};

class ReadTrace {
 public:
  // Whether slices of a track may lie in each other. Those of calls do not.
  enum class Slices : uint8_t { kApart, kNested };

  // A trace in which something is wrong has `problems`. A packet that is cut off at the end is one.
  explicit ReadTrace(const std::string& bytes, Slices expected = Slices::kApart) : expected_(expected) {
    v1::TraceFile file;
    if (!file.ParseFromString(bytes)) problems.push_back("no packets");
    for (const v1::TracePacket& packet : file.packet()) {
      v1::TraceFile inside;
      const std::optional<std::string> text = runtime::Uncompress(packet.compressed_packets(), 1u << 30);
      if (!text || !inside.ParseFromString(*text)) problems.push_back("a damaged packet");
      for (const v1::TracePacket& one : inside.packet()) Read(one);
    }
    // As the reader sorts them: by time, else as they were written.
    std::stable_sort(events_.begin(), events_.end(),
                     [](const auto& one, const auto& other) { return one.first < other.first; });
    for (const auto& [time, event] : events_) Read(time, event);
    for (const auto& [track, open] : open_) {
      if (!open.empty()) problems.push_back("a slice without an end");
    }
  }
  static ReadTrace Of(const std::string& path, Slices expected = Slices::kApart) {
    std::ifstream file(path, std::ios::binary);
    return ReadTrace({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, expected);
  }

  size_t CountOf(const std::string& track) const {
    return static_cast<size_t>(
        std::count_if(slices.begin(), slices.end(), [&](const ReadSlice& slice) { return slice.track == track; }));
  }
  bool HasEvent(const std::string& name) const {
    return std::any_of(instants.begin(), instants.end(), [&](const ReadSlice& event) { return event.name == name; });
  }

  std::vector<ReadSlice> slices;  // the calls
  std::vector<ReadSlice> states;  // of ranks outside of calls
  std::vector<ReadSlice> ranges;  // of programs
  std::vector<ReadSlice> instants;
  std::map<std::string, uint64_t> clocks;
  std::vector<std::string> problems;

 private:
  struct Event {
    ReadSlice slice;
    v1::TrackEvent::Type type = v1::TrackEvent::TYPE_UNSPECIFIED;
    uint64_t track = 0;
  };

  void Read(const v1::TracePacket& packet) {
    if ((packet.sequence_flags() & 1) != 0) {
      names_ = keys_ = values_ = {};
      valid_ = true;
    }
    if ((packet.sequence_flags() & 2) != 0 && !valid_) problems.push_back("a packet before the state that it needs");
    for (const auto& text : packet.interned_data().event_names()) names_[text.iid()] = text.text();
    for (const auto& text : packet.interned_data().debug_annotation_names()) keys_[text.iid()] = text.text();
    for (const auto& text : packet.interned_data().debug_annotation_string_values()) values_[text.iid()] = text.text();
    for (const auto& clock : packet.clock_snapshot().clocks()) {
      clocks[clock.clock_id() == 1 ? "real" : "boot"] = clock.timestamp();
    }
    if (packet.has_track_descriptor()) tracks_[packet.track_descriptor().uuid()] = packet.track_descriptor();
    if (!packet.has_track_event()) return;
    const v1::TrackEvent& event = packet.track_event();
    Event read{.slice = {}, .type = event.type(), .track = event.track_uuid()};
    if (tracks_.count(event.track_uuid()) == 0) problems.push_back("a track without a description");
    read.slice.track = tracks_[event.track_uuid()].name();
    read.slice.node = tracks_[tracks_[event.track_uuid()].parent_uuid()].name();
    read.slice.name = names_[event.name_iid()];
    read.slice.start_ns = packet.timestamp();
    read.slice.causes = {event.flow_ids().begin(), event.flow_ids().end()};
    read.slice.waited = {event.terminating_flow_ids().begin(), event.terminating_flow_ids().end()};
    for (const v1::DebugAnnotation& argument : event.debug_annotations()) {
      std::string& value = read.slice.arguments[keys_[argument.name_iid()]];
      if (argument.value_case() == v1::DebugAnnotation::kStringValueIid) value = values_[argument.string_value_iid()];
      if (argument.value_case() == v1::DebugAnnotation::kStringValue) value = argument.string_value();
      if (argument.value_case() == v1::DebugAnnotation::kUintValue) value = std::to_string(argument.uint_value());
    }
    events_.emplace_back(packet.timestamp(), std::move(read));
  }

  void Read(uint64_t time, const Event& event) {
    std::vector<ReadSlice>& open = open_[event.track];
    if (event.type == v1::TrackEvent::TYPE_INSTANT) instants.push_back(event.slice);
    if (event.type == v1::TrackEvent::TYPE_SLICE_BEGIN) {
      if (!open.empty() && expected_ == Slices::kApart && &ListOf(event.slice.track) != &ranges)
        problems.push_back("slices that overlap");
      open.push_back(event.slice);
    }
    if (event.type != v1::TrackEvent::TYPE_SLICE_END) return;
    if (open.empty()) return problems.push_back("an end without a beginning");
    open.back().end_ns = time;
    open.back().waited = event.slice.waited;
    open.back().waited.insert(open.back().waited.end(), event.slice.causes.begin(), event.slice.causes.end());
    ListOf(open.back().track).push_back(std::move(open.back()));
    open.pop_back();
  }

  std::vector<ReadSlice>& ListOf(const std::string& track) {
    if (track.ends_with(runtime::TraceWords::kOutsideCalls)) return states;
    const bool is_range =
        std::any_of(std::begin(runtime::TraceWords::kLanes) + 1, std::end(runtime::TraceWords::kLanes),
                    [&](const char* lane) { return track.ends_with(lane); });
    return is_range ? ranges : slices;
  }

  const Slices expected_;
  bool valid_ = false;  // readers skip what needs a state until one begins
  std::map<uint64_t, std::string> names_, keys_, values_;
  std::map<uint64_t, v1::TrackDescriptor> tracks_;
  std::vector<std::pair<uint64_t, Event>> events_;
  std::map<uint64_t, std::vector<ReadSlice>> open_;
};

}  // namespace cohort::launcher
