// A process as /proc/PID/stat shows it. Reading it takes about 5 us.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace cohort::runtime {

struct ProcessState {
  bool ended() const { return state == 'Z' || state == 'X'; }

  std::string name;  // of the program as a rule, cut to 15 bytes
  char state = '?';  // R, S, D, T (stopped), t (traced), Z, X
  pid_t parent = 0;
  pid_t group = 0;
  int terminal = 0;      // its controlling terminal, by the kernel's number; 0: none
  uint64_t flags = 0;    // PF_ of the kernel
  bool exiting = false;  // ended, or killed and torn down by the kernel; pidfd and wait() may lag behind by a second
  int exit_status = 0;   // as wait() would give it; valid while exiting, where the kernel tells
  int64_t threads = 0;
  uint64_t start_time = 0;  // ticks since boot: with the pid it names the process for good
  int64_t resident_bytes = 0;
  uint64_t major_faults = 0;  // times that it has waited for a page from a disk
  uint64_t cpu_ticks = 0;     // used, by the user's code and the kernel for it; sysconf(_SC_CLK_TCK) a second
};

// PF_ of the kernel: the process leaves, and a signal ends it.
inline constexpr uint64_t kExitingFlag = 0x4;
inline constexpr uint64_t kKilledBySignalFlag = 0x400;

// Nothing where there is no such process, or no /proc.
std::optional<ProcessState> ReadProcessState(pid_t pid);
// The pure part: the contents of /proc/PID/stat.
std::optional<ProcessState> ParseProcessStat(const std::string& text);

}  // namespace cohort::runtime
