// The state of a process as /proc shows it. Reads files of /proc only; cheap (about 5 us).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

struct ProcessState {
  std::string name;  // of the program as a rule, cut to 15 bytes
  char state = '?';  // R, S, D, T (stopped), t (traced), Z, X
  pid_t parent = 0;
  pid_t group = 0;
  int terminal = 0;      // its controlling terminal, by the kernel's number; 0: none
  bool exiting = false;  // the kernel is tearing it down; pidfd and wait() may lag behind by a second
  int exit_status = 0;   // as wait() would give it; valid while exiting, where the kernel tells
  long threads = 0;
  unsigned long long start_time = 0;  // ticks since boot: with the pid it names the process for good
  long resident_bytes = 0;
  unsigned long long cpu_ticks = 0;  // used, by the user's code and the kernel for it; sysconf(_SC_CLK_TCK) a second
};

// Nothing when there is no such process.
std::optional<ProcessState> ReadProcessState(pid_t pid);
// The pure part: the contents of /proc/PID/stat.
std::optional<ProcessState> ParseProcessStat(const std::string& text);
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
