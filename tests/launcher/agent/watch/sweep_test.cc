#include "cohort/launcher/agent/watch/sweep.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <latch>
#include <thread>
#include <vector>

namespace cohort::launcher {
namespace {

pid_t Sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  return pid;
}

// Children of any thread, adopted ones and dead ones too; their own children not.
TEST(Sweep, ListsAllChildren) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  std::vector<pid_t> expected = ListChildren();
  expected.push_back(Sleeper());

  std::latch listed(1);
  std::latch forked(1);
  pid_t of_thread = 0;
  std::thread thread([&] {
    of_thread = Sleeper();
    forked.count_down();
    listed.wait();
  });
  forked.wait();
  expected.push_back(of_thread);

  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(dead), &info, WEXITED | WNOWAIT), 0);
  expected.push_back(dead);

  int tell[2];
  ASSERT_EQ(::pipe(tell), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t orphan = Sleeper();
    (void)!::write(tell[1], &orphan, sizeof orphan);
    ::_exit(0);
  }
  pid_t orphan = 0;
  ASSERT_EQ(::read(tell[0], &orphan, sizeof orphan), static_cast<ssize_t>(sizeof orphan));
  ::close(tell[0]);
  ::close(tell[1]);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  expected.push_back(orphan);

  std::vector<pid_t> children = ListChildren();
  listed.count_down();
  thread.join();
  std::sort(children.begin(), children.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(children, expected);

  ::waitpid(dead, nullptr, 0);
  EXPECT_TRUE(Sweep("", {}, true, std::chrono::seconds(20)));
  EXPECT_TRUE(ListChildren().empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace cohort::launcher
