// How a command gets to another host of an LSF job: blaunch, LSF's own remote shell. Pure.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// A RemoteCommand (see remote_command.h).
std::vector<std::string> BlaunchCommand(const Options& options, const std::string& own_path, const std::string& host,
                                        const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
