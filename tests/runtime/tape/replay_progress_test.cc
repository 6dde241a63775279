#include "cohort/runtime/tape/replay_progress.h"

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace cohort::runtime {
namespace {

// Exits with `status` after `begun` of three calls.
[[noreturn]] void EndAfter(size_t begun, int status) {
  auto progress = std::make_shared<ReplayProgress>();
  progress->rank = 7;
  progress->calls = 3;
  CheckAtExit(progress);
  progress->begun += begun;
  progress.reset();  // the rest of the replay goes before the process
  std::exit(status);
}

TEST(ReplayProgressDeathTest, AProcessThatEndsBeforeItsTapeFails) {
  EXPECT_EXIT(EndAfter(2, 0), ::testing::ExitedWithCode(1), "replay of rank 7: the program ended after 2 of 3 calls");
}

TEST(ReplayProgressDeathTest, AProcessThatMakesAllCallsEndsAsItWould) {
  EXPECT_EXIT(EndAfter(3, 0), ::testing::ExitedWithCode(0), "^$");
}

TEST(ReplayProgressDeathTest, AFailureOfTheProgramStays) {
  EXPECT_EXIT(EndAfter(2, 5), ::testing::ExitedWithCode(5), "^$");
}

TEST(ReplayProgressDeathTest, AForkedChildIsNotTheReplay) {
  const auto fork_and_end = [] {
    auto progress = std::make_shared<ReplayProgress>();
    progress->calls = 3;
    CheckAtExit(progress);
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    int status = -1;
    ::waitpid(child, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  };
  EXPECT_EXIT(fork_and_end(), ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace cohort::runtime
