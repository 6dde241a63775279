// A keeper beside an agent and a sentinel that are imitated by bare processes: a cgroup that is imitated by a folder,
// and a real one if it may be made here.
#include "cohort/launcher/agent/watch/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>

#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

using std::chrono::seconds;

constexpr seconds kLimit{60};

bool WaitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    ::usleep(1000);
  }
  return true;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

pid_t StartPausing(int cgroup = -1) {
  const pid_t pid = cgroup < 0 ? ::fork() : ForkInto(cgroup);
  if (pid != 0) return pid;
  if (cgroup >= 0) ::setsid();
  for (;;) ::pause();
}

bool WasKilled(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

class KeeperTest : public testing::Test {
 protected:
  KeeperTest() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // a keeper without parents comes to this process
    std::string pattern = (std::filesystem::temp_directory_path() / "keeper-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~KeeperTest() override {
    for (const pid_t pid : {agent_, sentinel_, keeper_}) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    std::filesystem::remove_all(folder_);
  }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }

  // An agent, its sentinel, and a keeper, which the sentinel replaces when it ends. The sentinel ends its keeper, and
  // then itself, by SIGALRM.
  void StartAll(const std::string& folder) {
    ASSERT_TRUE(told_.Open());
    Pipe sentinels;
    ASSERT_TRUE(sentinels.Open());
    agent_ = ::fork();
    if (agent_ == 0) {
      const pid_t agent = ::getpid();
      const pid_t sentinel = ::fork();
      if (sentinel == 0) BeSentinel(agent, folder);
      (void)!::write(sentinels.write_end.get(), &sentinel, sizeof sentinel);
      for (;;) ::pause();
    }
    ASSERT_EQ(::read(sentinels.read_end.get(), &sentinel_, sizeof sentinel_), static_cast<ssize_t>(sizeof sentinel_));
    keeper_ = NextKeeper();
    // It names itself, and by then has its session.
    ASSERT_TRUE(WaitUntil([this] { return Descriptors(keeper_).size() == 4; }));
  }
  pid_t NextKeeper() const {
    pid_t pid = 0;
    EXPECT_EQ(::read(told_.read_end.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    return pid;
  }
  static std::set<std::string> Descriptors(pid_t pid) {
    std::set<std::string> names;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
      names.insert(entry.path().filename().string() + " " + std::filesystem::read_symlink(entry, gone).string());
    }
    return names;
  }
  // In one go, so that none of them can do anything in between.
  void KillAgentAndSentinel() {
    for (const int signal : {SIGSTOP, SIGKILL}) {
      ::kill(agent_, signal);
      ::kill(sentinel_, signal);
    }
  }
  // Whether it has ended by itself, with 0.
  bool KeeperHasEnded() {
    int status = -1;
    if (!WaitUntil([&] { return ::waitpid(keeper_, &status, WNOHANG) == keeper_; })) return false;
    keeper_ = -1;
    return status == 0;
  }

  std::string folder_;
  pid_t agent_ = -1;
  pid_t sentinel_ = -1;
  pid_t keeper_ = -1;

 private:
  [[noreturn]] void BeSentinel(pid_t agent, const std::string& folder) const {
    for (int fd = 0; fd < 3; ++fd) ::dup2(::open("/dev/null", O_RDWR), fd);
    sigset_t ends;
    ::sigemptyset(&ends);
    ::sigaddset(&ends, SIGALRM);
    ::sigprocmask(SIG_BLOCK, &ends, nullptr);
    const runtime::FileDescriptor end(::signalfd(-1, &ends, 0));
    Cgroup cgroup = Cgroup::Existing(folder);
    Keeper keeper(agent, "", &cgroup);
    for (keeper.Start(); keeper.pid() > 0; keeper.OnEnded()) {
      const pid_t pid = keeper.pid();
      (void)!::write(told_.write_end.get(), &pid, sizeof pid);
      pollfd fds[] = {{keeper.watch().fd(), POLLIN, 0}, {end.get(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      if (fds[1].revents == 0) continue;
      keeper.End();
      ::_exit(0);
    }
    ::_exit(1);
  }

  Pipe told_;  // of the keepers' numbers
};

TEST_F(KeeperTest, KillsTheCgroupWhenAgentAndSentinelAreKilledAtOnce) {
  Write("cgroup.kill", "");
  StartAll(folder_);
  ::usleep(20'000);  // in which it would kill too early
  EXPECT_EQ(ReadText(folder_ + "/cgroup.kill"), "") << "while the agent lives";
  KillAgentAndSentinel();
  EXPECT_TRUE(WaitUntil([this] { return ReadText(folder_ + "/cgroup.kill") == "1"; }));
  std::filesystem::remove(folder_ + "/cgroup.kill");  // the kernel's goes with the folder
  EXPECT_TRUE(KeeperHasEnded());
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(KeeperTest, KillsOneByOneWhereTheKernelCanNotKillAll) {
  StartAll(folder_);
  const pid_t member = StartPausing();
  Write("cgroup.procs", "0\n" + std::to_string(member) + "\n");
  KillAgentAndSentinel();
  EXPECT_TRUE(WasKilled(member));
  std::filesystem::remove(folder_ + "/cgroup.procs");
  EXPECT_TRUE(KeeperHasEnded());
}

TEST_F(KeeperTest, SharesNothingByWhichOthersAreKilledWithTheirs) {
  Write("cgroup.kill", "");
  StartAll(folder_);
  const auto state = ReadProcessState(keeper_);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->name, kKeeperName);
  EXPECT_EQ(state->group, keeper_);
  EXPECT_EQ(::getsid(keeper_), keeper_);
  EXPECT_EQ(Descriptors(keeper_),
            (std::set<std::string>{"0 /dev/null", "1 /dev/null", "2 /dev/null", "3 anon_inode:[pidfd]"}));
  EXPECT_EQ(std::filesystem::read_symlink("/proc/" + std::to_string(keeper_) + "/cwd"), "/");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::kill(keeper_, signal);
  KillAgentAndSentinel();
  EXPECT_TRUE(WaitUntil([this] { return ReadText(folder_ + "/cgroup.kill") == "1"; }));
}

TEST_F(KeeperTest, OutlivesItsSentinelAndWaitsForTheAgent) {
  Write("cgroup.kill", "");
  StartAll(folder_);
  ::kill(sentinel_, SIGKILL);
  EXPECT_TRUE(WaitUntil([this] { return ReadProcessState(keeper_)->parent != sentinel_; }));
  ::usleep(20'000);  // in which it would kill too early
  EXPECT_EQ(ReadText(folder_ + "/cgroup.kill"), "");
  ::kill(agent_, SIGKILL);
  EXPECT_TRUE(WaitUntil([this] { return ReadText(folder_ + "/cgroup.kill") == "1"; }));
}

TEST_F(KeeperTest, AKilledKeeperIsReplacedAndOneThatItsSentinelEndsKillsNothing) {
  Write("cgroup.kill", "");
  StartAll(folder_);
  ::kill(keeper_, SIGKILL);
  const pid_t next = NextKeeper();
  EXPECT_NE(next, keeper_);
  EXPECT_FALSE(ReadProcessState(keeper_)) << "its sentinel has waited for it";
  keeper_ = next;
  ::kill(sentinel_, SIGALRM);
  EXPECT_TRUE(WaitUntil([this] { return !ReadProcessState(keeper_); }));
  ::kill(agent_, SIGKILL);
  EXPECT_EQ(ReadText(folder_ + "/cgroup.kill"), "");
}

// Neither environment nor session says whose it is.
TEST_F(KeeperTest, LeavesNothingOfARealCgroup) {
  const auto parent = OwnCgroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status().message();
  Cgroup cgroup(*parent);
  const absl::Status made = cgroup.Make();
  if (!made.ok()) GTEST_SKIP() << "needs a cgroup of version 2 that may be written: " << made.message();
  StartAll(cgroup.folder());
  std::filesystem::create_directory(cgroup.folder() + "/a-rank-made-it");
  const pid_t member = StartPausing(cgroup.fd());
  ASSERT_GT(member, 0);
  EXPECT_EQ(ReadText("/proc/" + std::to_string(keeper_) + "/cgroup").find("/cohort-"), std::string::npos);
  KillAgentAndSentinel();
  EXPECT_TRUE(WasKilled(member));
  EXPECT_TRUE(KeeperHasEnded());
  EXPECT_FALSE(std::filesystem::exists(cgroup.folder()));
  EXPECT_TRUE(cgroup.Remove(kLimit));
}

}  // namespace
}  // namespace cohort::launcher
