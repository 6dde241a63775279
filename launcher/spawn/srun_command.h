// How a command gets to another node of a Slurm allocation: a job step of one task. Pure.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {

// A RemoteCommand (see remote_command.h). The step shares the allocation's resources with all others (--overlap), has
// all of the node's memory and GPUs, and no binding of its own: dlaunch divides the node among the ranks itself. What
// the batch script's options left in the environment for such steps is taken out, since it would divide it again.
std::vector<std::string> SrunCommand(const Options& options, const std::string& own_path, const std::string& host,
                                     const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
