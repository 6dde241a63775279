// The resources that the processes of ranks use, for watchers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace cohort::launcher {

// A process group, which is a rank with what it has started.
struct GroupUse {
  uint32_t processes = 0;  // that live
  uint64_t cpu_ms = 0;     // that these have used so far
  uint64_t resident_bytes = 0;
  uint64_t age_ms = 0;   // since the start of its leader
  bool stopped = false;  // its leader is, by a signal
};

// The use of each of these groups that has a living process. One pass over /proc: 10 us for each process of the
// machine.
std::unordered_map<pid_t, GroupUse> LookAtGroups(const std::vector<pid_t>& groups);

}  // namespace cohort::launcher
