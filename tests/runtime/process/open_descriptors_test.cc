#include "cohort/runtime/process/open_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tests/support/refuse_calls.h"

namespace cohort::runtime {
namespace {

constexpr int kMany = 300;  // more than one answer of the kernel lists

// The kernels that a child meets: ours, one without close_range, and one whose /proc cannot be opened either.
enum class Kernel { kThis, kOld, kWithoutProc };

class OpenDescriptorsTest : public ::testing::TestWithParam<Kernel> {};

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// Opens descriptors up to `kMany` in a child, makes `change`, and returns the result of `check` there.
template <typename Change, typename Check>
int InChild(Kernel kernel, Change change, Check check) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit few{kMany + 10, kMany + 10};
    setrlimit(RLIMIT_NOFILE, &few);
    while (dup(2) < kMany) {
    }
    bool filtered = true;
    if (kernel == Kernel::kOld) filtered = cohort::testing::RefuseCalls({SYS_close_range}, ENOSYS);
    if (kernel == Kernel::kWithoutProc) filtered = cohort::testing::RefuseCalls({SYS_close_range, SYS_openat}, ENOSYS);
    if (!filtered) _exit(100);
    errno = 0;
    change();
    if (errno != 0) _exit(101);
    _exit(check());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(OpenDescriptorsTest, ClosesAllFromTheFirstAndNoneBelow) {
  const auto check = [] {
    for (int fd = 0; fd < 7; ++fd) {
      if (!IsOpen(fd)) return 1;
    }
    for (int fd = 7; fd < kMany + 10; ++fd) {
      if (IsOpen(fd)) return 2;
    }
    return 0;
  };
  EXPECT_EQ(InChild(GetParam(), [] { CloseFrom(7); }, check), 0);
}

TEST_P(OpenDescriptorsTest, MarksThemForTheNextProgramAndLeavesThemOpen) {
  const auto check = [] {
    for (int fd = 3; fd <= kMany; ++fd) {
      if (fcntl(fd, F_GETFD) != (fd < 7 ? 0 : FD_CLOEXEC)) return 1;
    }
    return 0;
  };
  EXPECT_EQ(InChild(GetParam(), [] { CloseOnExecFrom(7); }, check), 0);
}

std::string NameOf(const ::testing::TestParamInfo<Kernel>& kernel) {
  const char* const names[] = {"This", "WithoutCloseRange", "WithoutCloseRangeAndProc"};
  return names[static_cast<int>(kernel.param)];
}

INSTANTIATE_TEST_SUITE_P(Kernels, OpenDescriptorsTest,
                         ::testing::Values(Kernel::kThis, Kernel::kOld, Kernel::kWithoutProc), NameOf);

}  // namespace
}  // namespace cohort::runtime
