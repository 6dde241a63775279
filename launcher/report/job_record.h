// Describes the end of a job for programs: report.json in --log-dir.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// One JSON object, with bytes that are no UTF-8 replaced. Times are seconds since 1970. `cause` is there when the job
// failed: the first failure, of what rank, with its last lines, the one of them that says something (`last_line`), and
// what the others were doing. `ranks` has the end of each rank that was reported, in the order of the ranks.
// `preempted` is there when all ranks stopped at an agreed step: the signal that came, and the step that they did not
// begin. `programs` is there when there are several: their ranks as pairs of the first and the last, and their
// commands, which `command` has one after another with ":" between them; each rank then has its `program`.
// `restarted_after` has the same two and the status of each epoch that failed before the last. Pure.
//
//   {"format": 1, "job": "job-1f..", "exit_code": 7, "started": 1.7e9, "seconds": 2.5, "nodes": [{"name": "a", "ranks":
//   [0, 1]}],
//    "cause": {"text": "rank 1 (a, pid 7) exited with code 7", "rank": 1, "last_lines": [..], "others": [..]},
//    "ranks": [{"rank": 0, "node": "a", "pid": 6, "end": "killed by SIGTERM", "by_dlaunch": true, ...}], ...}
std::string FormatJobRecord(const v1::JobSnapshot& job);

// Writes it to `folder`/report.json, whole or not at all. The system's error with the name.
absl::Status WriteJobRecord(const std::string& folder, const v1::JobSnapshot& job);

}  // namespace cohort::launcher
