// Which process groups a sentinel would kill: never a number that may be somebody else's by then.
#include "cohort/launcher/agent/watch/sentinel.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/base/orphans.h"
#include "cohort/launcher/base/pipe.h"

namespace cohort::launcher {
namespace {

// The leader of a new group, which ends at once and leaves `*orphan` in it.
pid_t StartGroup(pid_t* orphan) {
  Pipe told;
  EXPECT_TRUE(told.Open());
  const pid_t leader = ::fork();
  if (leader == 0) {
    ::setpgid(0, 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      for (;;) ::pause();
    }
    ::_exit(::write(told.write_end.get(), &child, sizeof child) == sizeof child ? 0 : 1);
  }
  EXPECT_EQ(::read(told.read_end.get(), orphan, sizeof *orphan), static_cast<ssize_t>(sizeof *orphan));
  return leader;
}

class SentinelTest : public ::testing::Test {
 protected:
  SentinelTest() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~SentinelTest() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }
  Cgroup cgroup_{""};                                           // none
  Sentinel sentinel_{"COHORT_AGENT=@sentinel-test", &cgroup_};  // not started
};

TEST_F(SentinelTest, AGroupIsForgottenWithItsLastProcess) {
  pid_t orphan = 0;
  const pid_t leader = StartGroup(&orphan);
  sentinel_.AddGroup(leader);
  ASSERT_EQ(::waitpid(leader, nullptr, 0), leader);
  sentinel_.LeaderEnded(leader);
  sentinel_.ForgetEmptyGroups();
  EXPECT_EQ(sentinel_.groups().count(leader), 1u) << "its orphan lives";
  ::kill(orphan, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(orphan), &info, WEXITED | WNOWAIT), 0);
  sentinel_.ForgetEmptyGroups();
  EXPECT_EQ(sentinel_.groups().count(leader), 1u) << "the orphan that nobody has waited for holds the number";
  ReapOrphans([](pid_t) { return false; });
  sentinel_.ForgetEmptyGroups();
  EXPECT_TRUE(sentinel_.groups().empty()) << "the number may be anybody's now";
}

TEST_F(SentinelTest, ASentinelWatchesFromItsStartUntilItsDeath) {
  EXPECT_FALSE(sentinel_.watches());
  ASSERT_TRUE(sentinel_.Start());
  EXPECT_TRUE(sentinel_.watches());
  ::kill(sentinel_.pid(), SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(sentinel_.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(sentinel_.watches()) << "though nobody has waited for it";
}

TEST_F(SentinelTest, OrphansAreReapedUpToTheFirstThatIsKnown) {
  const pid_t known = ::fork();
  if (known == 0) ::_exit(7);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(known), &info, WEXITED | WNOWAIT), 0);
  ReapOrphans([known](pid_t pid) { return pid == known; });
  int status = 0;
  ASSERT_EQ(::waitpid(known, &status, WNOHANG), known) << "it was taken from who waits for it";
  EXPECT_EQ(WEXITSTATUS(status), 7);
  const pid_t orphan = ::fork();
  if (orphan == 0) ::_exit(0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(orphan), &info, WEXITED | WNOWAIT), 0);
  ReapOrphans([known](pid_t pid) { return pid == known; });
  EXPECT_EQ(::waitpid(orphan, nullptr, WNOHANG), -1);
  ReapOrphans([](pid_t) { return false; });  // of none
}

}  // namespace
}  // namespace cohort::launcher
