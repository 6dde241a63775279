// Control groups: found by what /proc says, imitated by folders for what this machine may not have, and real ones where
// they may be made here.
#include "cohort/launcher/agent/watch/cgroup.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "cohort/launcher/agent/rank/rank_process.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CgroupTest : public testing::Test {
 protected:
  CgroupTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cgroup-test-XXXXXX").string();
    root_ = std::string(::mkdtemp(pattern.data())) + "/";
  }
  ~CgroupTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // The answer of OwnCgroup, below the root; "none" for a failure.
  std::string Own(const std::string& cgroups, const std::string& mounts) const {
    Write("proc/self/cgroup", cgroups);
    Write("proc/self/mountinfo", mounts);
    const auto own = OwnCgroup(root_);
    if (!own.ok()) return "none";
    return own->substr(root_.size() - 1);
  }
  std::string root_;
};

TEST_F(CgroupTest, TheOwnCgroupIsFoundWhereverItIsMounted) {
  const std::string plain = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
  const std::string hybrid =
      "31 30 0:27 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"
      "32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  const std::string container = "40 39 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  EXPECT_EQ(Own("0::/user.slice/a\n", plain), "/sys/fs/cgroup/user.slice/a");
  EXPECT_EQ(Own("0::/\n", plain), "/sys/fs/cgroup");
  EXPECT_EQ(Own("4:memory:/x\n0::/\n", hybrid), "/sys/fs/cgroup/unified");
  EXPECT_EQ(Own("0::/docker/ab/job\n", container), "/sys/fs/cgroup/job");
  EXPECT_EQ(Own("0::/docker/ab\n", container), "/sys/fs/cgroup");
  EXPECT_EQ(Own("0::/docker/abc\n", container), "none") << "another container's";
  EXPECT_EQ(Own("0::/../other\n", plain), "none") << "outside of the namespace";
  EXPECT_EQ(Own("0::/gone (deleted)\n", plain), "none");
  EXPECT_EQ(Own("4:memory:/x\n", hybrid), "none") << "only version 1";
  EXPECT_EQ(Own("0::/\n", "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"), "none");
  EXPECT_EQ(Own("", ""), "none");
}

TEST_F(CgroupTest, ACgroupThatCannotBeMadeChangesNothing) {
  Cgroup none("");
  EXPECT_TRUE(none.Make().ok());
  EXPECT_EQ(none.fd(), -1);
  EXPECT_TRUE(none.Kill(seconds(1)) && none.Remove(seconds(1)));
  Cgroup elsewhere(root_);  // a folder that is no cgroup
  EXPECT_EQ(elsewhere.Make().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(elsewhere.fd(), -1);
  EXPECT_FALSE(std::filesystem::exists(elsewhere.folder())) << "nothing stays";
  EXPECT_TRUE(elsewhere.Kill(seconds(1)) && elsewhere.Remove(seconds(1)));
  Cgroup forbidden("/proc/self");
  EXPECT_EQ(forbidden.Make().code(), absl::StatusCode::kUnavailable);
}

// As in most containers. An agent would look for its cgroup until its limits are over, at the end of each job.
TEST_F(CgroupTest, ACgroupOnAReadOnlyMountNeedsNoRemoval) {
  constexpr int kNotPermitted = 2;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("none", root_.c_str(), "tmpfs", MS_RDONLY, nullptr) == 0;
    if (!mounted) ::_exit(kNotPermitted);
    Cgroup cgroup(root_.substr(0, root_.size() - 1));
    const bool made = cgroup.Make().ok();
    ::_exit(!made && cgroup.Remove(milliseconds(0)) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "needs to be root, who may mount";
  EXPECT_EQ(status, 0);
}

// A folder with the files that the kernel would have.
TEST_F(CgroupTest, KillsOneByOneWhereTheKernelCanNotKillAll) {
  Cgroup cgroup(root_.substr(0, root_.size() - 1));
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::string folder = cgroup.folder().substr(root_.size());
  Write(folder + "/cgroup.events", "populated 1\nfrozen 0\n");
  Write(folder + "/cgroup.procs", "0\n");  // one of another namespace
  Write(folder + "/below/cgroup.procs", std::to_string(child) + "\n");
  EXPECT_FALSE(cgroup.Kill(milliseconds(0))) << "it does not look empty";
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  Write(folder + "/cgroup.events", "populated 0\nfrozen 0\n");
  EXPECT_TRUE(cgroup.Kill(milliseconds(0)));
  Write(folder + "/cgroup.events", "populated 1\nfrozen 0\n");
  Write(folder + "/cgroup.kill", "");
  EXPECT_FALSE(cgroup.Kill(milliseconds(0)));
  std::ifstream told(cgroup.folder() + "/cgroup.kill");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(told), {}), "1");
}

class RealCgroup : public CgroupTest {
 protected:
  void SetUp() override {
    const auto parent = OwnCgroup();
    if (!parent.ok()) GTEST_SKIP() << parent.status().message();
    parent_ = *parent;
    cgroup_ = std::make_unique<Cgroup>(parent_);
    const absl::Status made = cgroup_->Make();
    if (!made.ok()) GTEST_SKIP() << "needs a cgroup of version 2 that may be written: " << made.message();
  }
  void TearDown() override {
    if (cgroup_ == nullptr) return;
    EXPECT_TRUE(cgroup_->Remove(seconds(60)));
    EXPECT_FALSE(std::filesystem::exists(cgroup_->folder()));
  }
  static std::string ReadFile(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string parent_;
  std::unique_ptr<Cgroup> cgroup_;
};

// A process that has dropped its environment, left its session and lost its parents is still there.
TEST_F(RealCgroup, ACgroupHoldsEveryProcessThatARankStarts) {
  const RankCommand command{.argv = {"sh", "-c", "(setsid env -i sleep 1000 &); setsid sleep 1000 & echo up; wait"},
                            .path = "/bin/sh",
                            .environment = {"PATH=/usr/bin:/bin"},
                            .working_directory = "/",
                            .cpus = {},
                            .cgroup = cgroup_->fd()};
  auto process = StartRank(command);
  ASSERT_TRUE(process.ok()) << process.status();
  const std::string members_file = cgroup_->folder() + "/1/cgroup.procs";
  const auto members = [&] {
    std::istringstream pids(ReadFile(members_file));
    std::multiset<std::string> names;
    for (std::string pid; pids >> pid;) names.insert(ReadFile("/proc/" + pid + "/comm"));
    return names;
  };
  // Before, the inner shell is one of them, too.
  const std::multiset<std::string> started = {"sh\n", "sleep\n", "sleep\n"};
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (members() != started && std::chrono::steady_clock::now() < end) ::usleep(1000);
  EXPECT_EQ(members(), started);
  EXPECT_NE(ReadFile("/proc/" + std::to_string(process->pid) + "/cgroup").find("/cohort-"), std::string::npos);
  EXPECT_TRUE(cgroup_->Kill(seconds(60)));
  EXPECT_FALSE(std::filesystem::exists(members_file)) << "the next are started in another";
  int status = 0;
  EXPECT_EQ(::waitpid(process->pid, &status, 0), process->pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// A restart: what is started after a kill lives.
TEST_F(RealCgroup, ACgroupMayBeMadeAgainAfterAKill) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    ASSERT_TRUE(cgroup_->Make().ok());
    const pid_t stays = ForkInto(cgroup_->fd());
    if (stays == 0) ::pause();
    const pid_t ends = ForkInto(cgroup_->fd());
    if (ends == 0) ::_exit(7);
    ASSERT_GT(ends, 0);
    int status = 0;
    EXPECT_EQ(::waitpid(ends, &status, 0), ends);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << "epoch " << epoch << ": " << status;
    EXPECT_TRUE(cgroup_->Kill(seconds(60)));
    EXPECT_EQ(::waitpid(stays, &status, 0), stays);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
}

TEST_F(RealCgroup, CgroupsBelowAreRemoved) {
  std::filesystem::create_directories(cgroup_->folder() + "/one/two");
  EXPECT_TRUE(cgroup_->Remove(seconds(60)));
}

TEST_F(RealCgroup, TheNextCgroupRemovesThoseOfAKilledAgent) {
  Cgroup lost(parent_);
  const pid_t maker = ::fork();
  if (maker == 0) {
    if (lost.Make().ok()) ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(maker, &status, 0), maker);
  ASSERT_TRUE(WIFSIGNALED(status));
  RemoveStaleCgroups(parent_);
  EXPECT_FALSE(std::filesystem::exists(lost.folder()));
  EXPECT_TRUE(std::filesystem::exists(cgroup_->folder())) << "one that somebody holds stays";
}

}  // namespace
}  // namespace cohort::launcher
