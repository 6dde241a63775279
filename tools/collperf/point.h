// One measured point: an operation on blocks of one size.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/collperf/buffers.h"
#include "tools/collperf/options.h"
#include "tools/collperf/rank_session.h"
#include "tools/measure/operation.h"
#include "tools/measure/statistics.h"

namespace cohort::collperf {

// One system at one point: of a run, or of a comparison, which leaves out what it does not know of a peer.
struct Result {
  measure::Operation operation{};
  std::string transport = {};  // that of the run; Measure leaves it empty
  int ranks = 0;
  std::string system = {};  // ours by the kind of memory: "private", "window", "cuda"; else a peer's name
  int64_t bytes = 0;        // of a block
  int64_t count = 0;        // elements of it
  std::string type = {};
  std::string op = {};  // "-" where there is none
  int root = -1;        // -1 where there is none
  int64_t iterations = 0;
  measure::Summary us = {};
  double algbw = 0;  // GB/s, by the median
  double busbw = 0;
  int64_t wrong = -1;  // elements of all ranks in all checked calls; -1: not checked
  std::string algorithm = {};
  // One-way latency of a flag between ranks 0 and 1 right before and after the timed calls; over several turns the
  // least and the greatest. 0: not known.
  double flag_before_ns = 0;
  double flag_after_ns = 0;
  std::string placement = {};  // of the CPUs: "near", "far", "moved"; empty where it is not known
  double fast_us = 0;  // median of the same call at Determinism::kFast, in turn with the others; 0: not measured
  bool rewritten = false;
  int64_t messages = 1;
  double compute_us = 0;  // of computing beside an asynchronous call
  int turns = 1;
  double window_ratio = 0;  // of our time to a peer's, in windows and in private memory; 0: not compared
  double private_ratio = 0;
};

// Checks, warms up and measures one point. Collective; the same result on all ranks. `buffers` hold at least
// `bytes` a block.
absl::StatusOr<Result> Measure(RankSession& session, const Options& options, const Buffers& buffers,
                               measure::Operation operation, const NamedType& type, const NamedOp& op, int64_t bytes);

}  // namespace cohort::collperf
