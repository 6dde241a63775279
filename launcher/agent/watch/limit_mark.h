// A mark that all processes of an agent's ranks carry and that none of them loses by accident: a resource limit.
//
// A process that wipes its environment, leaves its session and closes its descriptors keeps its resource limits, and so
// do its children. The limit on the CPU time of real-time processes (RLIMIT_RTTIME, in microseconds) has room for a
// mark: from 2^62 on, 146,000 years, it limits nothing.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>

namespace cohort::launcher {

// The limit that stands for `mark` (NAME=VALUE): 2^62 and 48 bits of its hash. Pure.
rlim_t LimitMark(const std::string& mark);
// The limits that a child of this process sets to carry the mark (RLIMIT_RTTIME). Nothing where somebody has limited
// this process before: it goes without.
std::optional<rlimit> LimitWithMark(rlim_t mark);
// Whether a process carries it. False for processes of other users and for those that are gone.
bool HasLimitMark(pid_t pid, rlim_t mark);

}  // namespace cohort::launcher
