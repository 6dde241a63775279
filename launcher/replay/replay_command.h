// `dlaunch replay`: runs one rank of a recorded job alone.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

runtime::ManualCommand ReplayManual();

// The program takes the place of this process, with the recorded rank's variables. Returns where it can't be started,
// and after the list of tapes where no program is given.
int RunReplayCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
