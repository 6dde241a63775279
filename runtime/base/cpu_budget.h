// How many CPUs this process may really use.
#pragma once

#include <optional>
#include <string>

namespace cohort::runtime {

// The affinity mask, which a cpuset limits too, or the cgroups' quota, whichever is less; at least 1. Reads files: not
// for hot paths.
int AvailableCpus();

// True when `local_ranks` processes like this one must share CPUs. A quota is taken to be that of all of them. A rank
// whose mask is a small part of the machine is taken to have it for itself as long as the machine has room for all.
bool Oversubscribed(int local_ranks);

// CPUs that the quotas of this process' cgroups pay for: cpu.max of version 2, cpu.cfs_quota_us of version 1, of the
// own group and of all above it. The least one counts, rounded down, and at least 1: 1.5 CPUs are one that is always
// there. Nothing where there is no quota. `root` stands for "/", in tests.
std::optional<int> CpusOfQuota(const std::string& root = "/");

}  // namespace cohort::runtime
