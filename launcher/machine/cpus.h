// The CPUs that this process, and so its job, may use.
#pragma once

#include <vector>

namespace cohort::launcher {

// The affinity mask, ordered so that neighbours in the list are neighbours in the machine: by package, core, thread.
// Never empty.
std::vector<int> AvailableCpus();

// The same CPUs in the same order, those of one core together. Where the machine does not tell, each is a core.
std::vector<std::vector<int>> AvailableCores();

// The groups that have some of `cpus`, reduced to these.
std::vector<std::vector<int>> Restrict(const std::vector<std::vector<int>>& groups, const std::vector<int>& cpus);

// How many of `cpus` the cgroups' quota pays for, rounded down (runtime/base/cpu_budget.h); all where there is no
// quota. At least 1.
int CpusWithinQuota(int cpus);

// The CPUs that the ranks of this node have together: of the affinity mask, as many as the quota pays for. Reads files
// of /sys, so once for all ranks.
int CpusToShare();

// The threads that a rank may use well, one of `ranks` on this node with `to_share` CPUs, which may run on `own` of
// them, shared or not: for OMP_NUM_THREADS. At least 1. Pure.
int CpuShare(int own, int ranks, int to_share);

}  // namespace cohort::launcher
