// A trace of what a simulation predicts, in the format of `dlaunch --trace`: in a file of its own, or below the trace
// of a run that the file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/perfetto/perfetto_packets.h"
#include "cohort/runtime/perfetto/perfetto_reader.h"

namespace cohort::tools {

// Not thread-safe. Times are nanoseconds from the beginning of the prediction.
class PredictionTrace {
 public:
  // Whether the run did with this slice of rank 0 what is predicted. The prediction begins with the middle one of
  // these, or with the trace where there is none.
  using IsLike = std::function<bool(const runtime::PerfettoReader::Event& begin)>;

  // Reads the file, if it is there. `label` names the prediction: "all_reduce ring". kInvalidArgument: the file holds
  // no trace, or one that is still being written. The system's error, with the name: nothing can be written there.
  static absl::StatusOr<PredictionTrace> Open(std::string path, std::string label, const IsLike& is_like);

  struct Details {
    std::vector<std::pair<const char*, std::string>> texts = {};
    std::vector<std::pair<const char*, uint64_t>> numbers = {};
    std::vector<uint64_t> flows = {};  // of arrows that begin at the slice
  };
  // The number of an arrow, which no other one in the file has.
  uint64_t NewFlow() { return next_number_++; }
  // Names the group of ranks that the run does not have; before their slices. Groups that have equal names are one.
  void PutInGroup(int rank, const std::string& group);
  // A slice of a rank, on one of its lines. What begins before it ends lies in it. In the order of time on each line.
  void BeginSlice(int rank, size_t line, uint64_t ns, const std::string& name, const Details& details);
  // `flow`: of the arrow that ends there; 0: none.
  void EndSlice(int rank, size_t line, uint64_t ns, uint64_t flow = 0);

  // The place where the prediction begins, for people: "below number 26 of 51 of rank 0, 1.234567 s after the beginning
  // of the run". Empty: in a file of its own.
  const std::string& place() const { return place_; }
  // Writes the file, whole or not at all. The system's error with the name.
  absl::Status Write();

 private:
  PredictionTrace(std::string path, std::string label) : path_(std::move(path)), label_(std::move(label)) {}

  absl::Status ReadRun(const IsLike& is_like);
  uint64_t GroupTrack(const std::string& name);
  uint64_t LineTrack(int rank, size_t line);

  std::string path_;
  std::string label_;
  std::string place_;
  uint64_t run_bytes_ = 0;                        // of the file that are kept; 0: there is no run
  uint64_t begin_ns_ = 0;                         // of the prediction, by the file's clock
  std::map<int, uint64_t> run_groups_;            // of the run's ranks: the track that holds theirs
  std::map<int, std::string> groups_;             // of other ranks
  std::map<std::string, uint64_t> group_tracks_;  // by name
  std::map<std::pair<int, size_t>, uint64_t> line_tracks_;
  uint64_t next_number_ = 0;  // of a track or an arrow
  runtime::PerfettoPackets packets_;
};

}  // namespace cohort::tools
