// How much memory this machine and this process may still use.
#pragma once

#include <cstdint>

namespace cohort::runtime {

// All memory of the machine, in bytes.
uint64_t TotalMemory();
// Bytes that can be allocated before the kernel starts to kill: MemAvailable and free swap, and what the cgroup's
// memory.max (v2) leaves. UINT64_MAX where neither can be read.
uint64_t AvailableMemory();

}  // namespace cohort::runtime
