#include "cohort/launcher/agent/rank/rank_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/open_files.h"

namespace cohort::launcher {
namespace {

RankCommand Shell(const std::string& script) {
  return {.argv = {"sh", "-c", script},
          .path = "/bin/sh",
          .environment = {"PATH=/usr/bin:/bin", "COLOUR=green"},
          .working_directory = "/",
          .cpus = {}};
}

std::string ReadAll(const runtime::FileDescriptor& fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd ready{fd.get(), POLLIN, 0};
    if (::poll(&ready, 1, 60'000) <= 0) return text + " (no end)";
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WaitForExec(RankProcess* process, const RankCommand& command) {
  pollfd ready{process->exec_error.get(), POLLIN, 0};
  if (::poll(&ready, 1, 60'000) <= 0) return absl::DeadlineExceededError("it is not known");
  return ExecOutcome(*process, command).value_or(absl::InternalError("it is not known"));
}

TEST(RankProcess, RunsTheProgramInAGroupOfItsOwnWithDefaultSignals) {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const RankCommand command = Shell("echo $COLOUR; pwd; grep -E 'SigBlk|SigIgn' /proc/self/status; echo oops >&2");
  auto process = StartRank(command);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_TRUE(WaitForExec(&*process, command).ok());
  EXPECT_EQ(ReadAll(process->output), "green\n/\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  EXPECT_EQ(ReadAll(process->error), "oops\n");
  int status = 0;
  ::waitpid(process->pid, &status, 0);
  EXPECT_EQ(status, 0);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
}

TEST(RankProcess, ARanksChildIsFoundWhereEnvironmentAndSessionAreLost) {
  const std::string mark = "COHORT_AGENT=rank_process_test." + std::to_string(::getpid());
  RankCommand command = Shell("env -i setsid sleep 1000 >/dev/null 2>&1 & echo $!");
  command.environment.push_back(mark);
  auto process = StartRank(command);
  ASSERT_TRUE(process.ok()) << process.status();
  const pid_t left = std::stoi(ReadAll(process->output));
  ::waitpid(process->pid, nullptr, 0);
  ASSERT_EQ(::kill(left, 0), 0) << "it has ended by itself";
  EXPECT_TRUE(HasLimitMark(left, LimitMark(mark)));
  EXPECT_FALSE(HasLimitMark(left, LimitMark(mark + "7")));
  EXPECT_FALSE(HasLimitMark(::getpid(), LimitMark(mark)));
  EXPECT_TRUE(Sweep(mark, Spared(), false, std::chrono::seconds(20)));
  const auto lives = [left] {
    const auto state = ReadProcessState(left);
    return state && !state->exiting && state->state != 'Z';
  };
  for (int tries = 0; lives() && tries < 30'000; ++tries) ::usleep(1000);
  EXPECT_FALSE(lives());
}

TEST(RankProcess, KeepsTheUsersLimitOnOpenFilesWhenTheAgentRaisesItsOwn) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max <= 200) GTEST_SKIP() << "ulimit -Hn is " << before.rlim_max;
  const rlimit users{200, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &users), 0);
  RaiseOpenFileLimit();
  RaiseOpenFileLimit();
  rlimit raised{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_EQ(raised.rlim_cur, before.rlim_max);
  const RankCommand command =
      Shell("ulimit -Sn; test $(ulimit -Hn) = " + std::to_string(before.rlim_max) + " && echo same");
  auto process = StartRank(command);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(ReadAll(process->output), before.rlim_max == RLIM_INFINITY ? "200\n" : "200\nsame\n");
  ::waitpid(process->pid, nullptr, 0);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(RankProcess, SaysWhyAProgramCanNotBeExecuted) {
  RankCommand command = Shell("true");
  command.path = "/nowhere/program";
  auto process = StartRank(command);
  EXPECT_EQ(WaitForExec(&*process, command).code(), absl::StatusCode::kNotFound);
  ::waitpid(process->pid, nullptr, 0);
  command.path = "/etc/passwd";
  process = StartRank(command);
  EXPECT_EQ(WaitForExec(&*process, command).code(), absl::StatusCode::kPermissionDenied);
  ::waitpid(process->pid, nullptr, 0);
  command = Shell("true");
  command.working_directory = "/nowhere";
  process = StartRank(command);
  const absl::Status status = WaitForExec(&*process, command);
  EXPECT_NE(std::string(status.message()).find("/nowhere"), std::string::npos) << status;
  ::waitpid(process->pid, nullptr, 0);
}

TEST(RankProcess, DiesWithItsParent) {
  int tell[2];
  ASSERT_EQ(::pipe(tell), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const RankCommand command = Shell("exec sleep 1000");
    auto process = StartRank(command);
    if (!process.ok() || !WaitForExec(&*process, command).ok()) ::_exit(1);
    (void)!::write(tell[1], &process->pid, sizeof process->pid);
    ::pause();
  }
  pid_t rank = 0;
  ASSERT_EQ(::read(tell[0], &rank, sizeof rank), static_cast<ssize_t>(sizeof rank));
  const runtime::FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, rank, 0)));
  ASSERT_TRUE(pidfd.valid());
  ::kill(parent, SIGKILL);
  pollfd ended{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 60'000), 1);
  ::waitpid(parent, nullptr, 0);
  ::close(tell[0]);
  ::close(tell[1]);
}

}  // namespace
}  // namespace cohort::launcher
