// The name of this process in lists of processes, for copies of an agent that must not look like one.
#pragma once

#include <string_view>

namespace cohort::launcher {

// Remembers the place of main's arguments, over which NameProcess writes.
void RememberArguments(int argc, char** argv);

// Sets the name that `ps -e` and `pkill` show (15 bytes at most), and the command line that `ps -f` and `pkill -f` show
// (arguments separated by NULs, the last one without). The command line stays as it is without RememberArguments, or if
// the new one is longer and the kernel does not let us move it (no CONFIG_CHECKPOINT_RESTORE).
void NameProcess(const char* name, std::string_view command_line);

}  // namespace cohort::launcher
