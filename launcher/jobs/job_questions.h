// Questions to the dlaunch of a job that take more than one answer.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// All nodes, and all ranks as their agents last told. The agents are asked to look again, for the next question.
// Blocks; errors as JobConnection::AskForAll.
absl::StatusOr<v1::JobSnapshot> AskForRanks(JobConnection* connection);

// The stacks of these ranks, or of all where none are named, and which are missing. Blocks until the agents have
// answered, for four seconds at the most, and for the pages of the answer. Errors as JobConnection, and kUnavailable:
// the ranks were started again meanwhile.
absl::StatusOr<v1::JobSnapshot> AskForStacks(const std::string& job_id, const std::vector<int>& ranks);

}  // namespace cohort::launcher
