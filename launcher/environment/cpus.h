// The CPUs that this process, and so its job, may use.
#pragma once

#include <vector>

namespace cohort::launcher {

// The affinity mask, ordered so that neighbours in the list are neighbours in the machine: by package, core, thread.
// Never empty.
std::vector<int> AvailableCpus();

// How many of `cpus` the cgroup's quota pays for, rounded up; all where there is no quota. At least 1.
int CpusWithinQuota(int cpus);

// The threads that a rank may use well, one of `ranks` on this node, which may run on `own` CPUs, shared or not: for
// OMP_NUM_THREADS. At least 1.
int CpuShare(int own, int ranks);

}  // namespace cohort::launcher
