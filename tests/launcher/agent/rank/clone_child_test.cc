#include "cohort/launcher/agent/rank/clone_child.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cohort/runtime/process/raw_call.h"

namespace cohort::launcher {
namespace {

using runtime::RawArgument;
using runtime::RawCall;

constexpr char kNotHere[] = "ranks are forked here: another processor than x86-64, a sanitizer, or no clone3";

[[noreturn]] void End(int exit_code) {
  for (;;) RawCall(SYS_exit_group, exit_code);
}

// Reads a byte from the pipe, as one that waits for its program's file system, and ends.
class Waiter : public ChildWork {
 public:
  Waiter(int pipe, int exit_code) : pipe_(pipe), exit_code_(exit_code) {}
  [[noreturn]] void Run() const override {
    RawCall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
    if (RawCall(SYS_getppid) != parent_) End(1);  // it died before
    char byte = 0;
    RawCall(SYS_read, pipe_, RawArgument(&byte), 1);
    End(exit_code_);
  }

 private:
  const int pipe_;
  const int exit_code_;
  const pid_t parent_ = ::getpid();
};

class Program : public ChildWork {
 public:
  explicit Program(int output) : output_(output) {}
  [[noreturn]] void Run() const override {
    RawCall(SYS_dup3, output_, 1, 0);
    RawCall(SYS_chdir, RawArgument("/usr"));
    RawCall(SYS_execve, RawArgument("/bin/sh"), RawArgument(arguments_), RawArgument(environment_));
    End(127);
  }

 private:
  const int output_;
  const char* arguments_[4] = {"sh", "-c", "echo $$; pwd", nullptr};
  const char* environment_[1] = {nullptr};
};

// Makes a system call that fails, again and again, until the pipe ends.
class Failer : public ChildWork {
 public:
  explicit Failer(int pipe) : pipe_(pipe) {}
  [[noreturn]] void Run() const override {
    for (;;) {
      RawCall(SYS_close, -1);
      pollfd ended{pipe_, POLLIN, 0};
      const timespec now{};
      if (RawCall(SYS_ppoll, RawArgument(&ended), 1, RawArgument(&now)) != 0) End(0);
    }
  }

 private:
  const int pipe_;
};

int ExitCodeOf(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

class CloneChild : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe(pipe_), 0);
    if (!StartByClone(std::make_shared<Program>(pipe_[1]), -1)) GTEST_SKIP() << kNotHere;
    ASSERT_GT(::wait(nullptr), 0);
    char text[200];
    ASSERT_GT(::read(pipe_[0], text, sizeof text), 0);
  }
  void TearDown() override {
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }

  int pipe_[2] = {-1, -1};
};

TEST_F(CloneChild, ExecutesAProgramAndLeavesThisProcessAsItWas) {
  char before[4096];
  ASSERT_NE(::getcwd(before, sizeof before), nullptr);
  std::vector<int> memory(100'000);
  std::iota(memory.begin(), memory.end(), 0);
  const std::optional<pid_t> pid = StartByClone(std::make_shared<Program>(pipe_[1]), -1);
  ASSERT_TRUE(pid.has_value());
  EXPECT_NE(*pid, ::getpid());
  EXPECT_EQ(ExitCodeOf(*pid), 0);
  char text[200] = {};
  ASSERT_GT(::read(pipe_[0], text, sizeof text - 1), 0);
  EXPECT_EQ(text, std::to_string(*pid) + "\n/usr\n");
  char after[4096];
  ASSERT_NE(::getcwd(after, sizeof after), nullptr);
  EXPECT_STREQ(before, after);
  for (size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory[i], static_cast<int>(i));
}

TEST_F(CloneChild, StartsOthersWhileSomeStillLookForTheirPrograms) {
  std::vector<pid_t> waiting;
  for (int i = 0; i < 70; ++i) {
    const std::optional<pid_t> pid = StartByClone(std::make_shared<Waiter>(pipe_[0], i), -1);
    ASSERT_TRUE(pid.has_value());
    waiting.push_back(*pid);
  }
  EXPECT_EQ(ReleaseExecuted(), 70u);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), 0) << "one did not wait";
  const std::vector<char> bytes(70);
  ASSERT_EQ(::write(pipe_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  for (int i = 0; i < 70; ++i) EXPECT_EQ(ExitCodeOf(waiting[i]), i);
  EXPECT_EQ(ReleaseExecuted(), 0u);
}

TEST_F(CloneChild, KeepsTheWorkUntilTheProgramIsExecuted) {
  auto work = std::make_shared<Waiter>(pipe_[0], 0);
  const std::weak_ptr<Waiter> kept = work;
  const std::optional<pid_t> pid = StartByClone(std::move(work), -1);
  ASSERT_TRUE(pid.has_value());
  EXPECT_EQ(ReleaseExecuted(), 1u);
  EXPECT_FALSE(kept.expired());
  ASSERT_EQ(::write(pipe_[1], "", 1), 1);
  EXPECT_EQ(ExitCodeOf(*pid), 0);
  EXPECT_EQ(ReleaseExecuted(), 0u);
  EXPECT_TRUE(kept.expired());
}

TEST_F(CloneChild, LeavesErrnoAlone) {
  const std::optional<pid_t> pid = StartByClone(std::make_shared<Failer>(pipe_[0]), -1);
  ASSERT_TRUE(pid.has_value());
  errno = ENOTTY;
  for (int i = 0; i < 1'000'000; ++i) ASSERT_EQ(*static_cast<volatile int*>(&errno), ENOTTY);
  ASSERT_EQ(::write(pipe_[1], "", 1), 1);
  EXPECT_EQ(ExitCodeOf(*pid), 0);
}

TEST_F(CloneChild, ChildrenDieWithTheProcess) {
  int tell[2];
  ASSERT_EQ(::pipe(tell), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const std::optional<pid_t> child = StartByClone(std::make_shared<Waiter>(pipe_[0], 0), -1);
    const pid_t pid = child.value_or(-1);
    (void)!::write(tell[1], &pid, sizeof pid);
    ::pause();
  }
  pid_t child = 0;
  ASSERT_EQ(::read(tell[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  ::close(tell[0]);
  ::close(tell[1]);
  ASSERT_GE(pidfd, 0);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  ::close(pidfd);
}

}  // namespace
}  // namespace cohort::launcher
