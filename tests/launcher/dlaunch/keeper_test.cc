// Processes that ranks start with an empty environment and in a session of their own: nothing of them is left, whatever
// of dlaunch, agent and sentinel is killed with SIGKILL at once. Where a cgroup may be written its keeper sees to that.
#include "cohort/launcher/agent/watch/keeper.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

// Why no cgroup may be made here; empty: one may.
string WhyNoCgroup() {
  const auto parent = OwnCgroup();
  if (!parent.ok()) return string(parent.status().message());
  Cgroup probe(*parent);
  const absl::Status made = probe.Make();
  EXPECT_TRUE(probe.Remove(kGone));
  return made.ok() ? "" : "needs a cgroup of version 2 that may be written: " + string(made.message());
}

// In a mount namespace of its own: this process' cgroup becomes a folder that is none and can't be written.
bool HideCgroup() {
  const auto parent = OwnCgroup();
  if (!parent.ok()) return true;
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", parent->c_str(), "tmpfs", MS_RDONLY, nullptr) == 0;
}

bool CanHideCgroup() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(HideCgroup() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

class Strangers : public ::testing::Test {
 protected:
  // Two nodes, a rank and a stranger on each.
  void Start(bool with_cgroup, const string& then = "exec sleep 1000") {
    if (!with_cgroup && !CanHideCgroup()) GTEST_SKIP() << "needs to be root, or else no cgroup that may be written";
    if (const string why = WhyNoCgroup(); with_cgroup && !why.empty()) GTEST_SKIP() << why;
    stranger_ = programs_.path() + "/stranger";
    std::filesystem::copy_file("/bin/sleep", stranger_);
    DlaunchSurroundings surroundings;
    surroundings.environment = {"TMPDIR=" + folder_.path()};
    if (!with_cgroup) surroundings.enter = HideCgroup;
    job_ = std::make_unique<DlaunchProcess>(
        vector<string>{"--simulate-nodes", "2", "sh", "-c",
                       "(setsid env -i " + stranger_ + " 1000 &); cat /proc/self/cgroup; echo up; " + then},
        surroundings);
    ASSERT_TRUE(job_->WaitForOutput("[0] up") && job_->WaitForOutput("[1] up")) << job_->err();
    ASSERT_TRUE(job_->WaitUntil([&] { return FindStrangers().size() == 2; })) << job_->err();
    if (!with_cgroup) return;
    for (size_t at = 0; (at = job_->out().find("/cohort-", at)) != string::npos; ++at) {
      cgroups_.push_back(OwnCgroup().value() + job_->out().substr(at, job_->out().find('/', at + 1) - at));
      EXPECT_TRUE(std::filesystem::exists(cgroups_.back())) << cgroups_.back();
    }
    ASSERT_EQ(cgroups_.size(), 2u) << job_->out();
    ASSERT_TRUE(job_->WaitUntil([&] { return Keepers().size() == 2; }));
  }
  static bool IsUp() { return !IsSkipped() && !HasFatalFailure(); }
  void TearDown() override {
    for (const pid_t pid : FindStrangers()) ::kill(pid, SIGKILL);
    if (IsSkipped()) return;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
  vector<pid_t> FindStrangers() const {
    vector<pid_t> found;
    for (const pid_t pid : ListProcesses()) {
      std::error_code gone;
      const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone);
      if (!stranger_.empty() && program == stranger_) found.push_back(pid);
    }
    return found;
  }
  vector<pid_t> Keepers() const { return job_->ProcessesWith(kKeeperName); }
  vector<pid_t> Agents() const { return {job_->AgentProcess(0), job_->AgentProcess(1)}; }
  // All that `pkill -f dlaunch` finds, but dlaunch.
  vector<pid_t> AgentsAndSentinels() const {
    vector<pid_t> found = Agents();
    for (const pid_t pid : job_->ProcessesWith("dlaunch sentinel")) found.push_back(pid);
    EXPECT_EQ(found.size(), 4u);
    return found;
  }
  // In one go: none of them can do anything in between.
  static void KillAtOnce(const vector<pid_t>& pids) {
    for (const int signal : {SIGSTOP, SIGKILL}) {
      for (const pid_t pid : pids) ::kill(pid, signal);
    }
  }
  void ExpectAllGone() {
    EXPECT_EQ(job_->WaitUntilGone(kGone), "") << job_->err();
    EXPECT_TRUE(job_->WaitUntil([this] { return FindStrangers().empty(); }, kGone));
    for (const string& cgroup : cgroups_) EXPECT_FALSE(std::filesystem::exists(cgroup)) << cgroup;
  }

  const TemporaryFolder folder_;
  const TemporaryFolder programs_;
  string stranger_;
  vector<string> cgroups_;
  std::unique_ptr<DlaunchProcess> job_;
};

TEST_F(Strangers, NoProcessOutlivesKilledDlaunchAndAgentsInACgroup) {
  Start(true);
  if (!IsUp()) return;
  vector<pid_t> victims = Agents();
  victims.push_back(job_->pid());
  KillAtOnce(victims);
  EXPECT_EQ(job_->Wait(kGone), 137);
  ExpectAllGone();
}

TEST_F(Strangers, NoProcessOutlivesKilledDlaunchAndAgentsWithoutACgroup) {
  Start(false);
  if (!IsUp()) return;
  EXPECT_EQ(Keepers().size(), 0u) << "for nothing";
  vector<pid_t> victims = Agents();
  victims.push_back(job_->pid());
  KillAtOnce(victims);
  EXPECT_EQ(job_->Wait(kGone), 137);
  ExpectAllGone();
}

TEST_F(Strangers, NoProcessOutlivesKilledDlaunchAgentsAndSentinels) {
  Start(true);
  if (!IsUp()) return;
  vector<pid_t> victims = AgentsAndSentinels();
  victims.push_back(job_->pid());
  for (const pid_t keeper : Keepers()) EXPECT_EQ(job_->Processes().at(keeper).find("dlaunch"), string::npos);
  KillAtOnce(victims);
  EXPECT_EQ(job_->Wait(kGone), 137);
  ExpectAllGone();
}

TEST_F(Strangers, NoProcessOutlivesKilledAgentsAndSentinels) {
  Start(true);
  if (!IsUp()) return;
  KillAtOnce(AgentsAndSentinels());
  EXPECT_EQ(job_->Wait(kGone), 125);
  ExpectAllGone();
}

// Each sentinel has a keeper, those that were killed too.
TEST_F(Strangers, NoProcessOutlivesAJobWhoseSentinelsWereKilled) {
  Start(true);
  if (!IsUp()) return;
  for (const pid_t sentinel : job_->ProcessesWith("dlaunch sentinel")) ::kill(sentinel, SIGKILL);
  ASSERT_TRUE(job_->WaitUntil([&] { return Keepers().size() == 4; }));
  ::kill(job_->pid(), SIGTERM);
  EXPECT_EQ(job_->Wait(kGone), 143);
  EXPECT_TRUE(job_->Processes().empty());
  ExpectAllGone();
}

TEST_F(Strangers, NoProcessOutlivesAJobThatEndsByItself) {
  Start(true, "until [ -e '" + programs_.path() + "/end' ]; do sleep 0.02; done");
  if (!IsUp()) return;
  std::filesystem::create_directory(programs_.path() + "/end");
  EXPECT_EQ(job_->Wait(kGone), 0);
  EXPECT_TRUE(job_->Processes().empty()) << "keepers go before dlaunch";
  ExpectAllGone();
}

}  // namespace
}  // namespace cohort::launcher
