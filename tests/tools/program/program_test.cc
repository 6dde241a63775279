// The frame that every tool's main puts around its body.
#include "tools/program/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace cohort::tools {
namespace {

// Open descriptors below 64, a bit each.
uint64_t OpenDescriptors() {
  uint64_t open = 0;
  for (int fd = 0; fd < 64; ++fd) open |= static_cast<uint64_t>(fcntl(fd, F_GETFD) >= 0) << fd;
  return open;
}

// Whatever standard streams are closed, the body finds all three open, and nothing else besides what was open before.
TEST(RunProgram, AProgramHoldsTheStandardStreamsAndNothingElse) {
  for (int closed = 0; closed < 8; ++closed) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const uint64_t expected = OpenDescriptors() | 7;
      for (int fd = 0; fd < 3; ++fd) {
        if ((closed >> fd & 1) != 0) close(fd);
      }
      _exit(RunProgram("test", [&] { return OpenDescriptors() == expected ? 0 : 3; }) == 3 ? 3 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "closed: bits " << closed;
  }
}

}  // namespace
}  // namespace cohort::tools
