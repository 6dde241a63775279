// How much the caches near one CPU keep.
#pragma once

#include <cstddef>

namespace cohort::runtime {

// The data caches that one CPU reaches; sizes in bytes, 0 where they are not known.
struct CpuCaches {
  size_t level2 = 0;
  size_t level3 = 0;
  size_t level3_cpus = 0;       // that share it
  bool level3_is_near = false;  // it belongs to a few cores and is about as quick as level 2: AMD's
};

// Returns the caches of the CPU it runs on. It asks the CPU (x86) and the C library: microseconds, more in virtual
// machines.
CpuCaches ReadCpuCaches();

// How much a CPU can touch again and again before it has to be fetched from far away. One and a half times level 2
// where level 3 lies behind a mesh that all cores of a socket share (Intel, and what is not known), since level 3 is
// slow there and others fill it; three quarters of the CPU's share of a level 3 that is near, as the GNU C library
// counts for its own copies.
size_t NearBytes(const CpuCaches& caches);

// CpuCaches::level3_is_near of this machine, asked once.
bool Level3IsNear();

}  // namespace cohort::runtime
