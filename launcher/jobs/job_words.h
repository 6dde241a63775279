// Describes running jobs in the words that dlaunch's commands share.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// "12 s", "5 min", "3 h 20 min".
std::string Age(uint64_t ms);

// "job-0123456789abcdef  running for 12 s  4 ranks on 2 simulated nodes  dlaunch pid 4711\n  /bin/train --epochs 3\n"
// Several programs have a line each: "  ranks 1-3: /bin/client --port 7".
std::string Summary(const v1::JobSnapshot& job, pid_t pid);

// "spare nodes: node3, node4, and 2 more"; empty where there is none.
std::string DescribeSpares(const v1::JobSnapshot& job);

// The id of the one job of this machine that was meant by its id or the beginning of it; with nothing typed, of the
// only one that runs. kNotFound names those that may be meant.
absl::StatusOr<std::string> FindRunningJob(const std::string& typed);

}  // namespace cohort::launcher
