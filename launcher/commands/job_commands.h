// `dlaunch status` and `dlaunch kill`: the user's running jobs on this machine.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

runtime::ManualCommand StatusManual();
// `dlaunch status [--json] [JOB]`. Without JOB a line for each job that runs here, with it the job's nodes too. Returns
// the exit status: 0 also when none runs, 1 when JOB names none or several or one does not answer within 5 s, 2 for bad
// arguments.
int RunStatusCommand(const std::vector<std::string>& arguments);

runtime::ManualCommand KillManual();
// `dlaunch kill [--now] JOB`: ends a job in order, as SIGTERM to its dlaunch does, or at once, and waits for its end:
// for its grace and 20 s at most. Returns 0 when it has ended, 1 when there is none such or it refuses, 125 when it has
// not ended in that time, 2 for bad arguments.
int RunKillCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
