#include "cohort/runtime/tape/replay_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

namespace cohort::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr unsigned kHungAfter = 60;  // seconds

// Has a replay of that rank checked, with `begun` of its three calls. The rest of the replay goes before the process.
void CheckReplay(int rank, size_t begun) {
  auto progress = std::make_shared<ReplayProgress>();
  progress->rank = rank;
  progress->calls = 3;
  CheckAtExit(progress);
  progress->begun += begun;
}

// Exits with `status` after `begun` of three calls.
[[noreturn]] void EndAfter(size_t begun, int status) {
  CheckReplay(7, begun);
  std::exit(status);
}

// Ends as a forked child does.
[[noreturn]] void EndAs(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
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
    CheckReplay(7, 2);
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    EndAs(child);
  };
  EXPECT_EXIT(fork_and_end(), ::testing::ExitedWithCode(0), "^$");
}

TEST(ReplayProgressDeathTest, AForkedChildAnswersForItsOwnReplay) {
  const auto fork_and_end = [](size_t begun) {
    CheckReplay(7, 2);
    const pid_t child = ::fork();
    if (child == 0) {
      CheckReplay(8, begun);
      std::exit(0);
    }
    EndAs(child);
  };
  EXPECT_EXIT(fork_and_end(3), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(fork_and_end(2), ::testing::ExitedWithCode(1), AllOf(HasSubstr("rank 8"), Not(HasSubstr("rank 7"))));
}

TEST(ReplayProgressDeathTest, BufferedOutputStillComesOut) {
  const auto print_and_end = [] {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    std::ios::sync_with_stdio(false);
    std::cout << "the last line of the program\n";
    EndAfter(2, 0);
  };
  EXPECT_EXIT(print_and_end(), ::testing::ExitedWithCode(1),
              AllOf(HasSubstr("after 2 of 3 calls"), HasSubstr("the last line of the program\n")));
}

TEST(ReplayProgressDeathTest, AThreadThatReadsInputDoesNotKeepTheProcess) {
  const auto read_and_end = [] {
    ::alarm(kHungAfter);
    int input[2] = {-1, -1};
    if (::pipe(input) != 0 || ::dup2(input[0], STDIN_FILENO) < 0) ::_exit(99);
    // Never joined: it reads until the process has ended.
    [[maybe_unused]] static const auto* const reader = new std::thread([] { (void)std::getc(stdin); });
    while (::ftrylockfile(stdin) == 0) {  // the reader has yet to take the lock
      ::funlockfile(stdin);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EndAfter(2, 0);
  };
  EXPECT_EXIT(read_and_end(), ::testing::ExitedWithCode(1), "after 2 of 3 calls");
}

}  // namespace
}  // namespace cohort::runtime
