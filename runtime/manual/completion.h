// Completion of a program's command line in three shells: scripts for users' start-up files, or for the folders where
// shells look. Options, their values and commands are in the script. Jobs and hosts are asked from the program when
// they are needed: `PROGRAM completion jobs`, `PROGRAM completion hosts`. All pure.
#pragma once

#include <string>

#include "cohort/runtime/manual/command.h"

namespace cohort::runtime {

// For bash 4.2 and newer, with or without the package bash-completion.
std::string BashCompletion(const ManualCommand& program);
std::string ZshCompletion(const ManualCommand& program);
std::string FishCompletion(const ManualCommand& program);

}  // namespace cohort::runtime
