#include "cohort/runtime/process/process_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>

#include "tests/support/refuse_calls.h"

namespace cohort::runtime {
namespace {

using std::chrono::milliseconds;

// pidfd_open answers as on this kernel, or one of these errors: before Linux 5.3, by a filter, without descriptors.
constexpr int kNothing = 0;

class ProcessWatchTest : public ::testing::TestWithParam<int> {
 protected:
  // Runs `check` in a child, whose exit code it gives, where pidfd_open fails with the test's error.
  template <typename Check>
  static int InChild(Check check) {
    const pid_t child = fork();
    if (child == 0) {
      if (GetParam() != kNothing && !cohort::testing::RefuseCalls({SYS_pidfd_open}, GetParam())) _exit(100);
      _exit(check());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

// A process that sleeps until it is killed.
pid_t Sleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    for (;;) pause();
  }
  return pid;
}

TEST_P(ProcessWatchTest, SeesAnEndBeforeAnybodyHasAskedForIt) {
  EXPECT_EQ(InChild([] {
              const pid_t pid = Sleeper();
              const ProcessWatch watch(pid);
              if (!watch.valid() || watch.Ended() || watch.WaitForEnd(milliseconds(50))) return 1;
              kill(pid, SIGKILL);
              if (!watch.WaitForEnd(std::chrono::seconds(10)) || !watch.Ended()) return 2;
              waitpid(pid, nullptr, 0);
              return watch.Ended() ? 0 : 3;
            }),
            0);
}

TEST_P(ProcessWatchTest, HasADescriptorOrSaysHowOftenToLook) {
  EXPECT_EQ(InChild([] {
              const pid_t pid = Sleeper();
              const ProcessWatch watch(pid);
              kill(pid, SIGKILL);
              pollfd end{watch.fd(), POLLIN, 0};
              const int limit = watch.poll_limit_ms();
              const int ready = poll(&end, 1, limit < 0 ? 10000 : limit);
              waitpid(pid, nullptr, 0);
              if (GetParam() == kNothing) return limit == -1 && ready == 1 ? 0 : 1;
              return watch.fd() == -1 && limit == 20 ? 0 : 2;
            }),
            0);
}

TEST_P(ProcessWatchTest, AGoneProcessIsNotValid) {
  EXPECT_EQ(InChild([] {
              const pid_t pid = Sleeper();
              kill(pid, SIGKILL);
              waitpid(pid, nullptr, 0);
              const ProcessWatch watch(pid);
              return !watch.valid() && watch.Ended() && watch.poll_limit_ms() == -1 ? 0 : 1;
            }),
            0);
}

TEST_P(ProcessWatchTest, WorksWithItsDescriptorAtAnotherNumber) {
  EXPECT_EQ(InChild([] {
              const pid_t pid = Sleeper();
              ProcessWatch watch(pid);
              watch.MoveDescriptorTo(9);
              if (watch.fd() != (GetParam() == kNothing ? 9 : -1) || watch.Ended()) return 1;
              kill(pid, SIGKILL);
              const bool ended = watch.WaitForEnd(std::chrono::seconds(10));
              waitpid(pid, nullptr, 0);
              return ended ? 0 : 2;
            }),
            0);
}

TEST(ProcessWatch, NoProcessCountsAsEnded) {
  const ProcessWatch none;
  EXPECT_FALSE(none.valid());
  EXPECT_TRUE(none.Ended());
  EXPECT_EQ(none.fd(), -1);
}

INSTANTIATE_TEST_SUITE_P(Kernels, ProcessWatchTest, ::testing::Values(kNothing, ENOSYS, EPERM, EMFILE),
                         [](const ::testing::TestParamInfo<int>& error) {
                           return error.param == kNothing ? std::string("This")
                                                          : std::string("With") + strerrorname_np(error.param);
                         });

}  // namespace
}  // namespace cohort::runtime
