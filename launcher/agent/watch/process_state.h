// Processes as /proc shows them. Reads files of /proc only; cheap (about 5 us).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cohort/runtime/process/process_stat.h"

namespace cohort::launcher {

using runtime::ParseProcessStat;
using runtime::ProcessState;
using runtime::ReadProcessState;

// True when `pid` is `ancestor`, of the process group that it leads, or a descendant of either. Programs are often
// started through a wrapper.
bool DescendsFrom(pid_t pid, pid_t ancestor);
// The program behind a wrapper: what `pid`, which has a single thread, waits for in wait(), where that is its only
// child, and so on. 0 where there is none, or the kernel does not tell where a process waits. Whether a handler of a
// signal does something else meanwhile, nobody can tell.
pid_t WrappedProgram(pid_t pid);
// The process that traces it, as an attached debugger does; 0 when there is none. This process does not count, which
// stops threads for microseconds to see their stacks.
pid_t TracerOf(pid_t pid);
// All processes that /proc shows.
std::vector<pid_t> ListProcesses();
// The environment that `pid` was started with, entries separated by NULs; empty when it may not be read.
std::string ReadProcessEnvironment(pid_t pid);

}  // namespace cohort::launcher
