// A mark that all processes of an agent's ranks carry and that none of them loses by accident: a resource limit.
//
// A process that wipes its environment, leaves its session and closes its descriptors keeps its resource limits, and so
// do its children. The limit on the CPU time of real-time processes (RLIMIT_RTTIME, in microseconds) has room for a
// mark: from 2^62 on, 146,000 years, it limits nothing. The mark also names the rank among its agent's.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

// The limit that stands for `mark` (NAME=VALUE): 2^62 and 48 bits of its hash. Pure.
rlim_t LimitMark(const std::string& mark);
// The same for the processes of one of the agent's ranks: its number is in the 14 bits between. Pure.
rlim_t LimitMark(const std::string& mark, int local_rank);
// The mark that such an environment brings (COHORT_AGENT=...); empty: none.
std::string MarkIn(const std::vector<std::string>& environment);
// The limits that a child of this process sets to carry the mark (RLIMIT_RTTIME). Nothing where somebody has limited
// this process before: it goes without.
std::optional<rlimit> LimitWithMark(rlim_t mark);
// Whether a process carries it, for whatever rank. False for processes of other users and for those that are gone.
// `mark` is one without a rank.
bool HasLimitMark(pid_t pid, rlim_t mark);
// The rank for which a process carries it; nothing where it does not.
std::optional<int> MarkedRank(pid_t pid, rlim_t mark);

}  // namespace cohort::launcher
