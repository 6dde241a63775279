// collperf's command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/types.h"
#include "tools/measure/operation.h"
#include "tools/measure/pattern.h"

namespace cohort::collperf {

struct NamedType {
  comm::DataType dtype = comm::DataType::kFloat32;
  measure::ElementType layout;
};
struct NamedOp {
  comm::ReduceOp op = comm::ReduceOp::kSum;
  measure::Fold fold = measure::Fold::kSum;
};

struct Options {
  std::vector<measure::Operation> operations;
  std::vector<int64_t> sizes;  // of a block, ascending
  int64_t iterations = 0;      // 0: as many as fit into `point_ms`
  int64_t warmup = 20;
  int64_t point_ms = 200;
  int64_t batch = 1;     // calls between two gates
  int64_t messages = 1;  // of send_recv under way at a time
  bool rewrite = false;  // every rank writes its input again before each timed call
  bool check = true;
  bool spoil = false;
  std::vector<NamedType> types;
  std::vector<NamedOp> ops;
  int root = 0;
  bool in_place = false;
  comm::MemoryKind memory = comm::MemoryKind::kHost;
  bool window = false;
  std::string algorithm;
  std::string transport;
  std::string csv;
  std::string json;
  std::string plot;
  bool cost = false;
  // For reductions. Above kFast each of them is timed in turn with the same call at `fast`.
  comm::Determinism determinism = comm::Determinism::kFast;
  bool calibrate = false;
  // Instead of a table: every algorithm of each point in turn (algorithms.h).
  bool each_algorithm = false;
  // How often the systems of a comparison, or the algorithms, take turns at a point. 0: 5 and 7 times.
  int turns = 0;

  // Instead of a job's rank: the conductor of a comparison with other systems (peers/). Empty: a rank.
  std::vector<std::string> peers;
  std::vector<int> ranks = {2, 4, 8};
  bool quick = false;
  bool overlap = false;  // asynchronous all-reduces beside computing too
  std::string results;   // a folder to keep the text, the CSV and the pictures in
};

// The parsed command line, or the rest of the work: print `text` and end with `code`.
struct Parsed {
  Options options;
  bool ends = false;
  int code = 0;
  std::string text;
};
Parsed ParseCommandLine(int argc, const char* const* argv);

// By their names here or those of nccl-tests ("float", "half"); kInvalidArgument lists what there is.
absl::StatusOr<NamedType> ParseType(std::string_view name);
absl::StatusOr<NamedOp> ParseOp(std::string_view name);

}  // namespace cohort::collperf
