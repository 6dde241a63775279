#include "cohort/launcher/agent/watch/memory_watch.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/temporary_folder.h"

namespace cohort::launcher {
namespace {

// A pretended / with the files that the kernel would have.
class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest() { Write("proc/vmstat", "nr_free_pages 12\noom_kill 3\noom_kill_x 99\n"); }
  void Write(const std::string& name, const std::string& text) const { folder_.Write(name, text); }

  const TemporaryFolder folder_;
  const std::string root_ = folder_.path() + "/";
};

TEST_F(MemoryWatchTest, ACgroupsCountIsCertainAndItsLimitNamed) {
  Write("proc/self/cgroup", "0::/job.slice\n");
  Write("sys/fs/cgroup/job.slice/memory.events", "low 0\noom 0\noom_kill 0\n");
  Write("sys/fs/cgroup/job.slice/memory.max", "536870912\n");
  MemoryWatch watch(root_);
  EXPECT_EQ(watch.Verdict(), "");
  Write("sys/fs/cgroup/job.slice/memory.events", "low 0\noom 1\noom_kill 1\n");
  Write("proc/vmstat", "oom_kill 4\n");
  EXPECT_EQ(watch.Verdict(), "out of memory (limit of its cgroup: 512 MiB)");
  watch.Look();
  EXPECT_NE(watch.Verdict(), "") << "it may have happened just before the look";
  watch.Look();
  EXPECT_EQ(watch.Verdict(), "") << "long ago";
}

TEST_F(MemoryWatchTest, TheRanksOwnCgroupComesBeforeThisProcess) {
  Write("proc/self/cgroup", "0::/job.slice\n");
  Write("sys/fs/cgroup/job.slice/memory.events", "oom_kill 0\n");
  Write("sys/fs/cgroup/job.slice/memory.max", "536870912\n");
  const std::string own = root_ + "sys/fs/cgroup/job.slice/cohort-1";
  EXPECT_EQ(MemoryWatch(root_, own).Verdict(), "") << "no memory controller there";
  Write("sys/fs/cgroup/job.slice/cohort-1/memory.events", "oom 0\noom_kill 0\n");
  Write("sys/fs/cgroup/job.slice/cohort-1/memory.max", "max\n");
  const MemoryWatch watch(root_, own);
  Write("sys/fs/cgroup/job.slice/memory.events", "oom_kill 1\n");
  EXPECT_EQ(watch.Verdict(), "") << "another's";
  Write("sys/fs/cgroup/job.slice/cohort-1/memory.events", "oom 1\noom_kill 1\n");
  EXPECT_EQ(watch.Verdict(), "out of memory (limit of its cgroup: 512 MiB)") << "the limit is above it";
}

TEST_F(MemoryWatchTest, TheFirstVersionOfCgroupsIsRead) {
  Write("proc/self/cgroup", "5:cpu:/other\n4:memory:/job\n0::/\n");
  Write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  const MemoryWatch watch(root_);
  Write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 8\n");
  EXPECT_EQ(watch.Verdict(), "out of memory");
}

TEST_F(MemoryWatchTest, TheMachinesCountIsOnlyLikely) {
  const MemoryWatch watch(root_);
  EXPECT_EQ(watch.Verdict(), "");
  Write("proc/vmstat", "oom_kill 4\n");
  EXPECT_NE(watch.Verdict().find("most likely out of memory"), std::string::npos);
}

TEST_F(MemoryWatchTest, WithoutFilesThereIsNoVerdict) {
  MemoryWatch watch(root_ + "nowhere/");
  watch.Look();
  EXPECT_EQ(watch.Verdict(), "");
}

}  // namespace
}  // namespace cohort::launcher
