// Writes Perfetto's packets (proto/cohort/v1/trace_file.proto): a group of tracks for each node, in it a track for each
// rank, a slice for each call, others for its states outside of calls and for each lane of ranges, and one for what
// befalls the job.
// trace_reader.h reads them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/trace/traced_range.h"
#include "cohort/runtime/perfetto/perfetto_packets.h"
#include "cohort/runtime/perfetto/trace_words.h"

namespace cohort::launcher {

// The number of what is written here. It changes when a reader of the former would misunderstand it.
inline constexpr uint64_t kTraceFormat = 1;
inline constexpr uint32_t kMostTracedRanks = 1u << 27;  // a number that is not below is no rank's

// Not thread-safe.
class TracePackets {
 public:
  // Calls of one rank may overlap, where it does not wait for each. Each overlapping one is on a line of its own.
  static constexpr size_t kMostLines = 64;
  // Ranges of one line of a lane may cross, where buckets or threads share it (runtime::kRangeLines). Each that crosses
  // another one is on a further track.
  static constexpr uint64_t kMostTracksOfLine = 8;

  // PerfettoPackets::Begin, and the number of the format.
  void Begin(uint64_t steady_ns, uint64_t unix_ns);

  // A call by node 0's clock. `causes`: flows that begin at it, since others waited for it; `waited`: the flow that
  // ends at it, 0 for none, and the rank that it waited for. False: more calls of the rank overlap than there are
  // lines.
  struct Slice {
    const TracedCall* call = nullptr;
    std::string_view node;
    std::vector<uint64_t> causes = {};
    uint64_t waited = 0;
    uint32_t waited_for = 0;
    uint64_t waited_ns = 0;
    bool complete = true;  // the calls of all members are known
  };
  bool Add(const Slice& slice);
  // A call that has not ended by its `end_ns`, by node 0's clock. Add writes it too when it has ended.
  void AddOpen(const TracedCall& call, std::string_view node);
  // A state of a rank by node 0's clock.
  void AddState(const RankState& state, std::string_view node);
  // A range of a rank. Those of one line of a lane that begin together come with the longest first. False: it crosses
  // others on all tracks of its line.
  bool AddRange(const TracedRange& range, std::string_view node);
  // By node 0's clock. `node`: the rank's.
  void AddStep(const StepMark& mark, size_t node, std::string_view node_name);
  // Something that befell the job, or one of its nodes.
  void AddEvent(const std::string& name, const std::string& text, uint64_t ns);
  // That many calls, or ranges, of a rank are missing here.
  void AddMissed(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed, uint64_t ns);
  void AddMissedRanges(uint32_t rank, size_t node, std::string_view node_name, uint64_t missed, uint64_t ns);

  // Bytes of packets that wait for Take.
  size_t size() const { return packets_.size(); }
  // The packets as one compressed packet; empty: there were none.
  std::string Take() { return packets_.Take(); }

 private:
  // The latest ranges of one track.
  struct LatestRanges {
    // Whether the range overlaps one of them, and neither lies in the other: slices of a track can't.
    bool Cross(uint64_t start_ns, uint64_t end_ns) const;
    void Add(uint64_t start_ns, uint64_t end_ns);

    std::array<std::pair<uint64_t, uint64_t>, 8> spans{};
    size_t next = 0;
  };

  void Describe(const TracedCall& call, v1::TracePacket* packet);
  uint64_t JobTrack();
  uint64_t NodeTrack(size_t node, std::string_view name);
  uint64_t RankTrack(uint32_t rank, size_t node, std::string_view node_name, size_t line);
  // A second track of a rank: `first` with its number added.
  uint64_t TrackBeside(uint64_t first, uint32_t rank, const char* name, uint64_t node_track);
  uint64_t StateTrack(const RankState& state, std::string_view node_name);
  std::optional<uint64_t> RangeTrack(const TracedRange& range, std::string_view node_name);
  // An instant with one number.
  void AddCount(uint64_t track, uint64_t ns, const char* name, const char* counted, uint64_t count);

  runtime::PerfettoPackets packets_;
  std::unordered_map<uint32_t, std::vector<uint64_t>> line_ends_;  // by rank: when the latest call of each line ends
  std::unordered_map<uint32_t, uint64_t> state_ends_;              // by rank: when its latest state ends
  std::unordered_map<uint64_t, LatestRanges> latest_ranges_;       // by track
};

}  // namespace cohort::launcher
