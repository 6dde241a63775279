// Reads what PerfettoPackets has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "cohort/v1/trace_file.pb.h"

namespace cohort::runtime {

// Not thread-safe.
class PerfettoReader {
 public:
  struct Track {
    std::string name;
    uint64_t parent = 0;  // 0: none
  };
  struct Event {
    v1::TrackEvent::Type type = v1::TrackEvent::TYPE_UNSPECIFIED;
    uint64_t track = 0;
    uint64_t ns = 0;
    std::string name;                              // empty at the end of a slice
    std::map<std::string, std::string> arguments;  // numbers as text

    // In memory, about.
    size_t bytes() const;
  };
  using OnEvent = std::function<void(const Event& event)>;

  // Reads the file from its beginning, in the order in which it was written; what is cut off at its end is left out.
  // kNotFound: it can't be opened. kInvalidArgument: it is no trace that this project writes. kDataLoss: it is one, and
  // is damaged, or holds more texts and tracks than kMostTextBytes, or more in an event than kMostEventBytes. `name`:
  // of the file in errors; empty: its path.
  absl::Status Read(const std::string& path, const OnEvent& on_event, const std::string& name = "");

  // Bytes of the file up to what is cut off.
  uint64_t whole_bytes() const { return whole_bytes_; }
  // Whether something was cut off.
  bool cut() const { return cut_; }
  // The tracks that were described, by uuid.
  const std::map<uint64_t, Track>& tracks() const { return tracks_; }

  // Far above what PerfettoPackets writes, which interns 65,536 texts of a kind.
  static constexpr size_t kMostTextBytes = 256u << 20;
  static constexpr size_t kMostEventBytes = 1u << 20;

 private:
  static constexpr size_t kMostPacketBytes = 64u << 20;         // in the file
  static constexpr size_t kMostUncompressedBytes = 256u << 20;  // of such a packet

  using Texts = std::unordered_map<uint64_t, std::string>;
  // False: a packet holds what is no packets.
  bool Take(const v1::TracePacket& packet, const OnEvent& on_event);
  // Nothing: it is too large.
  std::optional<Event> EventOf(const v1::TracePacket& packet) const;
  void Intern(const google::protobuf::RepeatedPtrField<v1::InternedText>& from, Texts* to);

  // Why the packet behind the whole ones can't be read.
  absl::Status Broken(const std::string& name, const char* otherwise) const;

  uint64_t whole_bytes_ = 0;
  bool cut_ = false;
  Texts names_, argument_names_, argument_values_;
  size_t text_bytes_ = 0;  // of these, as an upper bound
  size_t track_bytes_ = 0;
  std::map<uint64_t, Track> tracks_;
};

}  // namespace cohort::runtime
