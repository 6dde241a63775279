// The ranks of a running job that have not joined it: no trace has anything of them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/verdict/history.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// The ranks whose processes run and which have not joined, while another rank has; with what the first few do. Blocks
// while the job's agents look, for some seconds at the most. None where all ranks have made one of `calls`, and where
// the job has ended or does not answer.
std::vector<UnjoinedRank> FindUnjoinedRanks(const std::string& job_id, const std::vector<TracedCall>& calls);

// Whether the agent has reported the rank since the agents were asked to look, at least `since_asked` ago. An earlier
// report may be out of date: another asker, such as dlaunch top, has caused it. Pure.
bool IsNews(const v1::JobRank& rank, std::chrono::milliseconds since_asked);

// The lines of a rank's stacks that tell what its process does: without native frames, and not many. Pure.
std::vector<std::string> DoingOf(const std::string& stacks);

}  // namespace cohort::launcher
