// `dlaunch trace`: takes a trace of a job that runs.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

runtime::ManualCommand TraceManual();

int RunTraceCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
