// `dlaunch --dry-run`: what a job would be.
#pragma once

#include <string>

#include "cohort/launcher/front_end/job_plan.h"

namespace cohort::launcher {

// "4 ranks on 2 simulated nodes on this machine, 2 GPUs each: /usr/bin/env (in PATH)"
std::string Summary(const Job& job);

// The text for people; with --json the document that tools/schemas/dry-run.schema.json describes. With --explain also
// how it came to the plan.
std::string DescribeDryRun(const Job& job);

}  // namespace cohort::launcher
