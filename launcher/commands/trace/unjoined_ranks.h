// The ranks of a running job that have not joined it: no trace has anything of them.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/trace/call_meetings.h"
#include "cohort/launcher/verdict/history.h"

namespace cohort::launcher {

// The ranks whose processes run and which have not joined, while another rank has; with what the first few do. Blocks
// while the job's agents look, for some seconds at the most. None where all ranks have made one of `calls`, and where
// the job has ended or does not answer.
std::vector<UnjoinedRank> FindUnjoinedRanks(const std::string& job_id, const std::vector<TracedCall>& calls);

// The lines of a rank's stacks that tell what its process does: without native frames, and not many. Pure.
std::vector<std::string> DoingOf(const std::string& stacks);

}  // namespace cohort::launcher
