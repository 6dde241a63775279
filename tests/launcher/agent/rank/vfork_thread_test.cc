#include "cohort/launcher/agent/rank/vfork_thread.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

constexpr char kNotHere[] = "ranks are forked here: another processor than x86-64, a sanitizer, or no clone3";

// Sleeps, as one that waits for its program's file system, and ends.
class Sleeper : public ChildWork {
 public:
  Sleeper(long milliseconds, int exit_code) : milliseconds_(milliseconds), exit_code_(exit_code) {}
  [[noreturn]] void Run() const override {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    timespec left{milliseconds_ / 1000, milliseconds_ % 1000 * 1'000'000};
    ::nanosleep(&left, nullptr);
    ::_exit(exit_code_);
  }

 private:
  const long milliseconds_;
  const int exit_code_;
};

class Program : public ChildWork {
 public:
  explicit Program(int output) : output_(output) {}
  [[noreturn]] void Run() const override {
    char* const arguments[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("echo $$; pwd"),
                               nullptr};
    char* const environment[] = {nullptr};
    ::dup2(output_, 1);
    (void)::chdir("/usr");
    ::execve("/bin/sh", arguments, environment);
    ::_exit(127);
  }

 private:
  const int output_;
};

int ExitCodeOf(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(VforkThread, ExecutesAProgramAndLeavesThisProcessAsItWas) {
  int output[2];
  ASSERT_EQ(::pipe(output), 0);
  char before[4096];
  ASSERT_NE(::getcwd(before, sizeof before), nullptr);
  std::vector<int> memory(100'000);
  std::iota(memory.begin(), memory.end(), 0);
  const std::optional<pid_t> pid = StartByVfork(std::make_shared<Program>(output[1]), -1);
  if (!pid) GTEST_SKIP() << kNotHere;
  EXPECT_NE(*pid, ::getpid());
  EXPECT_EQ(ExitCodeOf(*pid), 0);
  char text[200] = {};
  ASSERT_GT(::read(output[0], text, sizeof text - 1), 0);
  EXPECT_EQ(text, std::to_string(*pid) + "\n/usr\n");
  char after[4096];
  ASSERT_NE(::getcwd(after, sizeof after), nullptr);
  EXPECT_STREQ(before, after);
  for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], static_cast<int>(i));
  ::close(output[0]);
  ::close(output[1]);
}

TEST(VforkThread, OneThatFindsItsProgramSlowlyHoldsNobodyUp) {
  const std::optional<pid_t> slow = StartByVfork(std::make_shared<Sleeper>(2000, 3), -1);
  if (!slow) GTEST_SKIP() << kNotHere;
  ASSERT_GT(*slow, 0);
  EXPECT_EQ(::waitpid(*slow, nullptr, WNOHANG), 0) << "Start has waited for it";
  EXPECT_EQ(StartByVfork(std::make_shared<Sleeper>(0, 4), -1), std::nullopt);  // the caller forks meanwhile
  EXPECT_EQ(ExitCodeOf(*slow), 3);
  std::optional<pid_t> next;
  for (int tries = 0; !next && tries < 10'000; ++tries) {  // the thread wakes up after the child's end
    next = StartByVfork(std::make_shared<Sleeper>(0, 5), -1);
    if (!next) ::usleep(1000);
  }
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(ExitCodeOf(*next), 5);
}

TEST(VforkThread, ItsChildrenDieWithTheProcess) {
  int tell[2];
  ASSERT_EQ(::pipe(tell), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const std::optional<pid_t> child = StartByVfork(std::make_shared<Sleeper>(1'000'000, 0), -1);
    const pid_t pid = child.value_or(-1);
    (void)!::write(tell[1], &pid, sizeof pid);
    ::pause();
  }
  pid_t child = 0;
  ASSERT_EQ(::read(tell[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  const int pidfd = child > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, child, 0)) : -1;
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  ::close(tell[0]);
  ::close(tell[1]);
  if (child < 0) GTEST_SKIP() << kNotHere;
  ASSERT_GE(pidfd, 0);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  ::close(pidfd);
}

}  // namespace
}  // namespace cohort::launcher
