#include "cohort/launcher/agent/activity/throttle.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/temporary_folder.h"

namespace cohort::launcher {
namespace {

class ThrottleTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const { folder_.Write(name, text); }

  const TemporaryFolder folder_;
  const std::string root_ = folder_.path() + "/";
};

TEST_F(ThrottleTest, AddsTheGroupsWithALimitOfVersionTwo) {
  Write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  Write("proc/17/cgroup", "0::/pods/one/job\n");
  Write("cg/cpu.stat", "usage_usec 5\n");
  Write("cg/pods/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 900\n");
  Write("cg/pods/cpu.max", "max 100000\n");
  Write("cg/pods/one/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 70\n");
  Write("cg/pods/one/cpu.max", "50000 100000\n");
  Write("cg/pods/one/job/cpu.stat", "usage_usec 5\nnr_throttled 0\nthrottled_usec 8\n");
  Write("cg/pods/one/job/cpu.max", "70000 100000\n");
  const Throttle throttle(17, root_);
  EXPECT_TRUE(throttle.limited());
  EXPECT_EQ(throttle.TotalNs(), 78'000u);
}

TEST_F(ThrottleTest, FindsTheGroupOfVersionOne) {
  Write(
      "proc/self/mountinfo",
      "31 30 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n32 30 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  Write("proc/17/cgroup", "4:memory:/x\n2:cpu,cpuacct:/y\n0::/\n");
  Write("cg/cpu/y/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 12345\n");
  Write("cg/cpu/y/cpu.cfs_quota_us", "20000\n");
  Write("cg/cpu/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 1\n");
  Write("cg/cpu/cpu.cfs_quota_us", "-1\n");
  const Throttle throttle(17, root_);
  EXPECT_TRUE(throttle.limited());
  EXPECT_EQ(throttle.TotalNs(), 12'345u);
}

TEST_F(ThrottleTest, WithoutALimitThereIsNothingToAdd) {
  EXPECT_FALSE(Throttle(17, root_).limited());
  Write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  Write("proc/17/cgroup", "0::/job\n");
  Write("cg/job/cpu.stat", "throttled_usec 8\n");
  Write("cg/job/cpu.max", "max 100000\n");
  const Throttle throttle(17, root_);
  EXPECT_FALSE(throttle.limited());
  EXPECT_EQ(throttle.TotalNs(), 0u);
}

}  // namespace
}  // namespace cohort::launcher
