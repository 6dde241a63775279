#include "cohort/runtime/base/cpu_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cohort::runtime {
namespace {

#if defined(__x86_64__)
// Leaf 0x8000001D, a cache in each subleaf until one of type 0 (AMD64 Architecture Programmer's Manual, volume 3,
// appendix E.4.15). Only AMD and Hygon have it; the C library adds up the level 3 of a whole socket for them.
void ReadLevel3(CpuCaches* caches) {
  constexpr unsigned kLeaf = 0x8000001D;
  constexpr unsigned kMostCaches = 16;
  unsigned a = 0, b = 0, c = 0, d = 0;
  for (unsigned index = 0; index < kMostCaches && __get_cpuid_count(kLeaf, index, &a, &b, &c, &d) != 0; ++index) {
    const unsigned type = a & 0x1f;
    const unsigned level = (a >> 5) & 0x7;
    if (type == 0) return;
    if (level != 3) continue;
    const size_t line = (b & 0xfff) + 1;
    const size_t partitions = ((b >> 12) & 0x3ff) + 1;
    const size_t ways = (b >> 22) + 1;
    caches->level3 = line * partitions * ways * (size_t{c} + 1);
    caches->level3_cpus = ((a >> 14) & 0xfff) + 1;
    caches->level3_is_near = true;
  }
}
#else
void ReadLevel3(CpuCaches*) {}
#endif

}  // namespace

CpuCaches ReadCpuCaches() {
  CpuCaches caches;
  caches.level2 = static_cast<size_t>(std::max(int64_t{sysconf(_SC_LEVEL2_CACHE_SIZE)}, int64_t{0}));
  ReadLevel3(&caches);
  return caches;
}

size_t NearBytes(const CpuCaches& caches) {
  constexpr size_t kLeast = 1 << 20;  // what the C library does not know is taken for small
  constexpr size_t kMost = 16 << 20;
  const size_t level2 = std::clamp(caches.level2, kLeast, kMost);
  const size_t level3 =
      caches.level3_is_near && caches.level3_cpus > 0 ? std::min(caches.level3 / caches.level3_cpus, 4 * kMost) : 0;
  return std::max(level2 + level2 / 2, level3 / 4 * 3);
}

bool Level3IsNear() {
  static const bool near = ReadCpuCaches().level3_is_near;
  return near;
}

}  // namespace cohort::runtime
