// The JSON of `dlaunch status`, `top` and `stacks`, and the part that `doctor` and `--explain` share. tools/schemas/
// describes it. Pure.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/commands/top_table.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/report/json_parts.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

Json SourcesJson(const std::vector<ExplainedSource>& sources);

// A job as status tells it; `whole`: with its nodes and spares.
Json JobJson(const v1::JobSnapshot& job, pid_t pid, bool whole);

// `silent`: ids of jobs whose dlaunch did not answer, with the reason.
std::string StatusJson(const std::vector<Json>& jobs, const std::vector<std::pair<std::string, std::string>>& silent);

// One line. `before`: as for FormatJobFrame.
std::string FrameJson(const JobFrame& frame, const JobFrame* before);

std::string StacksJson(const v1::JobSnapshot& gathered, const std::string& job_id);

}  // namespace cohort::launcher
