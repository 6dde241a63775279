// CPU quotas of cgroups, as a folder that stands for "/" has them.
#include "cohort/runtime/base/cpu_budget.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace cohort::runtime {
namespace {

class CpuQuota : public testing::Test {
 protected:
  CpuQuota() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cpu-quota-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data()) + std::string("/");
  }
  ~CpuQuota() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Version 1 has its quota in two files.
  void WriteOld(const std::string& folder, const std::string& quota, const std::string& period) {
    Write(folder + "/cpu.cfs_quota_us", quota + "\n");
    Write(folder + "/cpu.cfs_period_us", period + "\n");
  }
  std::optional<int> Cpus() { return CpusOfQuota(root_); }

  std::string root_;
};

TEST_F(CpuQuota, NoQuotaIsNoLimit) {
  EXPECT_EQ(Cpus(), std::nullopt);
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Cpus(), std::nullopt);
  Write("sys/fs/cgroup/cpu.max", "nonsense\n");
  EXPECT_EQ(Cpus(), std::nullopt);
  WriteOld("sys/fs/cgroup/cpu", "-1", "100000");
  EXPECT_EQ(Cpus(), std::nullopt);
}

TEST_F(CpuQuota, TheQuotaIsRoundedDownAndAtLeastOne) {
  const std::pair<const char*, int> cases[] = {{"150000 100000", 1}, {"200000 100000", 2}, {"299999 100000", 2},
                                               {"100000 100000", 1}, {"50000 100000", 1},  {"1000 100000", 1},
                                               {"800000 50000", 16}};
  for (const auto& [text, cpus] : cases) {
    Write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Cpus(), cpus) << text;
  }
}

TEST_F(CpuQuota, CgroupVersion2CountsTheQuotaOfEveryGroupAbove) {
  Write("proc/self/cgroup", "0::/system.slice/job/step\n");
  Write("sys/fs/cgroup/system.slice/job/step/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/system.slice/job/cpu.max", "350000 100000\n");
  EXPECT_EQ(Cpus(), 3);
  Write("sys/fs/cgroup/system.slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(Cpus(), 2);
}

TEST_F(CpuQuota, CgroupVersion1CountsTheQuotaOfEveryGroupAbove) {
  Write("proc/self/cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/slurm/job_7\n1:name=systemd:/x\n");
  WriteOld("sys/fs/cgroup/cpu,cpuacct/slurm/job_7", "-1", "100000");
  WriteOld("sys/fs/cgroup/cpu,cpuacct/slurm", "250000", "100000");
  EXPECT_EQ(Cpus(), 2);
  WriteOld("sys/fs/cgroup/cpu,cpuacct/slurm/job_7", "150000", "100000");
  EXPECT_EQ(Cpus(), 1);
}

// A container without a namespace of cgroups: its path is the machine's, and only its own part is mounted.
TEST_F(CpuQuota, AContainersQuotaIsAtTheTopOfItsMount) {
  Write("proc/self/cgroup", "3:cpuacct,cpu:/docker/7f\n0::/docker/7f\n");
  WriteOld("sys/fs/cgroup/cpu", "400000", "100000");
  EXPECT_EQ(Cpus(), 4);
  Write("proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "33 30 0:29 /docker/7f /run/groups rw,nosuid shared:9 - cgroup cgroup rw,cpuacct,cpu\n");
  WriteOld("run/groups/inner", "100000", "100000");
  WriteOld("run/groups", "300000", "100000");
  EXPECT_EQ(Cpus(), 3);
  Write("proc/self/cgroup", "3:cpuacct,cpu:/docker/7f/inner\n");
  EXPECT_EQ(Cpus(), 1);
}

TEST_F(CpuQuota, GroupsOutsideOfTheNamespaceAreNotRead) {
  Write("proc/self/cgroup", "0::/../../other\n");
  Write("sys/fs/cgroup/cpu.max", "700000 100000\n");
  EXPECT_EQ(Cpus(), 7);
}

TEST(CpuBudget, AvailableCpusAreWithinTheQuota) {
  EXPECT_GE(AvailableCpus(), 1);
  if (const auto quota = CpusOfQuota()) {
    EXPECT_LE(AvailableCpus(), *quota);
    EXPECT_TRUE(Oversubscribed(*quota + 1));
  }
}

}  // namespace
}  // namespace cohort::runtime
