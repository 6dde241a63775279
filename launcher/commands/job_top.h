// `dlaunch top`: a running job, live.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

runtime::ManualCommand TopManual();
// `dlaunch top [--json] [--interval TIME] [JOB]`. On a terminal the page of top_table.h, drawn again every second until
// the job has ended or the user leaves; elsewhere one page as plain text, or with --interval one after another. Without
// JOB the only job that runs here. Returns the exit status: 0, also when the job ends; 1 when JOB names none or several
// or it does not answer within 5 s; 2 for bad arguments; 125 where the page can't be written.
int RunTopCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
