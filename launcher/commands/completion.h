// dlaunch's command line in every form, and the words with which shells complete it.
#pragma once

#include <string>
#include <vector>

#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

// Options, subcommands and sources of nodes.
runtime::ManualCommand DlaunchManual();

// `dlaunch --describe FORM`: "man", "markdown", "bash", "zsh" or "fish". Returns the exit status.
int PrintForm(const std::string& form);

runtime::ManualCommand CompletionManual();
// `dlaunch completion SHELL` prints the shell's script; with "jobs" or "hosts", which the scripts ask for, the ids of
// the user's jobs or the hosts of the last jobs, a line each.
int RunCompletionCommand(const std::vector<std::string>& arguments);

}  // namespace cohort::launcher
