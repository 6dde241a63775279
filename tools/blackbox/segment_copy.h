// Copies a node segment's contents about its ranks. The segment belongs to others, who may be running, stopped, dead or
// malicious. It is read with pread, never mapped, and nothing in it is believed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::blackbox {

struct RankCopy {
  int local_rank = 0;
  int pid = 0;         // 0: nobody has attached
  uint32_t state = 0;  // RankControl::state
  // Oldest first, at most as many as were asked for; records that were being written are missing.
  std::vector<runtime::CallRecord> records;
};

struct SegmentCopy {
  std::string job_id;  // printable, as is the next
  std::string node;    // empty: not known
  uint64_t epoch = 0;
  std::vector<RankCopy> ranks;
  uint64_t now_ns = 0;  // steady clock; of a saved segment: when it was saved, or else its newest time
};

// Reads the segment behind `fd`, the newest `records` records of each rank. kInvalidArgument where it is no node
// segment of this version.
absl::StatusOr<SegmentCopy> CopySegment(int fd, int records);

// Writes what CopySegment reads, and the time, for later: into a new file (kAlreadyExists where there is one), whole or
// not at all, or into a pipe.
absl::Status SaveSegment(int fd, const std::string& path);

}  // namespace cohort::blackbox
