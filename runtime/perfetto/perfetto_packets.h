// Writes packets in Perfetto's format (proto/cohort/v1/trace_file.proto): tracks, and slices and instants on them.
// Texts that repeat are written once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cohort/v1/trace_file.pb.h"
#include "google/protobuf/arena.h"

namespace cohort::runtime {

// Not thread-safe.
class PerfettoPackets {
 public:
  // Begins a file: nothing that an earlier one holds counts any more. What was added before the first one stands in it.
  // The clocks tell the day of times.
  void Begin(uint64_t steady_ns, uint64_t unix_ns);
  // Begins behind packets of another writer, whose clocks count.
  void BeginBehind();

  // Describes a track, once a file. Tracks of one name and parent are shown as one.
  struct Track {
    uint64_t uuid = 0;
    std::string name;
    uint64_t parent = 0;  // 0: none
    int32_t order = 0;    // among the children of `parent`
    bool has_children = false;
  };
  void Describe(const Track& track);
  bool Describes(uint64_t uuid) const { return described_.count(uuid) > 0; }

  // A packet of an event, which Append takes when it is complete, and which lives until the next Event. Slices have a
  // name at their beginning alone.
  v1::TracePacket& Event(v1::TrackEvent::Type type, uint64_t track, uint64_t ns, std::string_view name = "");
  void AddText(std::string_view name, std::string_view text, v1::TracePacket* packet);
  void AddNumber(std::string_view name, uint64_t number, v1::TracePacket* packet);
  void Append(const v1::TracePacket& packet);

  // Bytes of packets that wait for Take.
  size_t size() const { return packets_.size(); }
  // The packets as one compressed packet; empty: there were none.
  std::string Take();

 private:
  enum class State : uint8_t { kBeforeFile, kInFile };
  // Events are many and small: each is built where the one before was, mostly without allocating.
  struct Scratch {
    std::array<char, 4096> first_block;
    google::protobuf::Arena arena{first_block.data(), first_block.size()};
  };
  struct Texts {
    struct Hash {
      using is_transparent = void;
      size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };
    std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>> known;
    // The text's number, and whether it is new.
    std::pair<uint64_t, bool> Find(std::string_view text);
  };

  // Begins again with the packet that says so.
  void Clear(v1::TracePacket packet);
  v1::DebugAnnotation* Annotate(std::string_view name, v1::TracePacket* packet);

  std::unique_ptr<Scratch> event_ = std::make_unique<Scratch>();
  State state_ = State::kBeforeFile;
  std::string packets_;  // fields of a TraceFile
  Texts names_, argument_names_, argument_values_;
  std::set<uint64_t> described_;  // tracks, by uuid
};

}  // namespace cohort::runtime
