#include "cohort/runtime/base/cpu_cache.h"

#include <gtest/gtest.h>

namespace cohort::runtime {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(NearBytesTest, CountsLevel2WhereLevel3IsFar) {
  EXPECT_EQ(NearBytes({.level2 = 2 * kMiB, .level3 = 105 * kMiB, .level3_cpus = 2}), 3 * kMiB);
}

TEST(NearBytesTest, CountsAShareOfANearLevel3) {
  EXPECT_EQ(NearBytes({.level2 = kMiB, .level3 = 32 * kMiB, .level3_cpus = 2, .level3_is_near = true}), 12 * kMiB);
  // A share that is less than level 2 by itself.
  EXPECT_EQ(NearBytes({.level2 = kMiB, .level3 = 32 * kMiB, .level3_cpus = 32, .level3_is_near = true}),
            kMiB + kMiB / 2);
}

TEST(NearBytesTest, TakesUnknownOrIncredibleCachesForOrdinaryOnes) {
  EXPECT_EQ(NearBytes({}), kMiB + kMiB / 2);
  EXPECT_EQ(NearBytes({.level2 = size_t{1} << 60}), 24 * kMiB);
  EXPECT_EQ(NearBytes({.level2 = kMiB, .level3 = size_t{1} << 60, .level3_cpus = 1, .level3_is_near = true}),
            48 * kMiB);
  EXPECT_EQ(NearBytes({.level2 = kMiB, .level3 = 32 * kMiB, .level3_is_near = true}), kMiB + kMiB / 2);
}

TEST(ReadCpuCachesTest, ReadsTheCachesOfThisMachine) {
  const CpuCaches caches = ReadCpuCaches();
  EXPECT_EQ(caches.level3_is_near, caches.level3 > 0);
  EXPECT_EQ(caches.level3_is_near, caches.level3_cpus > 0);
  EXPECT_GE(NearBytes(caches), kMiB);
}

}  // namespace
}  // namespace cohort::runtime
