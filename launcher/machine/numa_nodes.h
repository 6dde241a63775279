// Which CPUs are near the same memory.
#pragma once

#include <vector>

namespace cohort::launcher {

// The NUMA nodes of this machine that have some of `cpus`, neighbours next to each other, each with those of `cpus`
// that it has, by hwloc (whose HWLOC_* variables count). All in one where the machine does not tell. Takes some
// milliseconds.
std::vector<std::vector<int>> FindNumaNodes(const std::vector<int>& cpus);

}  // namespace cohort::launcher
