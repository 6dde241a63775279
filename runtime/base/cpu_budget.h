// How many CPUs this process may really use.
#pragma once

#include <string>

namespace cohort::runtime {

// The affinity mask and the cgroup quota (v2 cpu.max of the own group and its parents, or v1 cpu.cfs_quota_us),
// whichever is less; at least 1. Reads files: not for hot paths.
int AvailableCpus();

// True when `local_ranks` processes like this one must share CPUs. A rank whose mask is a small part of the machine is
// taken to have it for itself as long as the machine has room for all.
bool Oversubscribed(int local_ranks);

// CPUs that a quota of "max 100000" or "150000 100000" (microseconds in a period) gives, rounded up; 0: no limit, or
// no such text.
int CpusOfQuota(const std::string& text);

}  // namespace cohort::runtime
