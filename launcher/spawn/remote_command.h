// The ways to run something on another node by a command here. Pure: arguments, no processes.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// The arguments of a command here that runs dlaunch with `arguments` on `host`, standard streams carried unchanged.
// `own_path` is where dlaunch lies there unless --agent-path says otherwise.
using RemoteCommand = std::vector<std::string>(const Options& options, const std::string& own_path,
                                               const std::string& host, const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
