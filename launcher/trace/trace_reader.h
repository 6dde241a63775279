// Reads the files that `dlaunch --trace` writes (trace_packets.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/trace/traced_range.h"

namespace cohort::launcher {

// Calls of all ranks that were missed within about a second, and when that was noted.
struct MissedCalls {
  uint64_t ns = 0;
  uint64_t calls = 0;
};

// The contents of a trace. All times are by one clock. A call of `calls` has the world ranks of itself and of the root
// as its ranks in the group: those in the group are in no trace.
struct TraceContents {
  std::vector<std::string> nodes;  // by TracedCall::node and RankState::node
  // As they were written: calls of all members together. Behind them those that had not ended when the trace did.
  std::vector<TracedCall> calls;
  std::vector<RankState> states;
  std::vector<StepMark> marks;
  std::vector<MissedCalls> missed;  // in the order of the file; those of many notes may be together
  uint64_t left_out = 0;            // the first calls, states and marks, which were too many
  bool cut = false;                 // the last packet is not whole, as after kill -9, and while the file is written
  // When the trace began; none: it does not tell.
  std::optional<uint64_t> begin_ns;

  uint64_t missed_calls() const;
  // The time from the begin of the trace to the last end of a call or a state. The first begin of a call or a state
  // counts if it is earlier, or if the trace does not tell its own.
  std::chrono::nanoseconds length() const;
};

// Keeps what the last `length` of the trace holds, and counts what is missing there alone. The trace begins there.
void KeepLatest(std::chrono::nanoseconds length, TraceContents* contents);

// Blocks while the file is read. Errors call the file `name`, or by its path where that is empty:
// - kNotFound: it can't be read.
// - kInvalidArgument: it is no trace, or none of dlaunch's.
// - kUnimplemented: it is of a later version.
// - kDataLoss: it is damaged, and where.
absl::StatusOr<TraceContents> ReadTraceFile(const std::string& path, const std::string& name = "");

}  // namespace cohort::launcher
