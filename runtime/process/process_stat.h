// A process as /proc shows it.
#pragma once

#include <cstdint>
#include <optional>

namespace cohort::runtime {

struct ProcessStat {
  bool ended = false;       // a zombie
  uint64_t flags = 0;       // PF_ of the kernel
  uint64_t start_time = 0;  // in clock ticks since the machine's start; tells a process from a later one of its number
  int exit_code = 0;        // as wait() gives it; valid when ended
};

// Nothing where there is no such process, or no /proc.
std::optional<ProcessStat> ReadProcessStat(int pid);

}  // namespace cohort::runtime
