// Programs behind wrappers: they are told to end and have the grace, and nothing that they or what outlives them print
// is lost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;
constexpr std::chrono::seconds kWrappersGone{40};

// A program that handles SIGTERM takes a while to save, in which others would be told or killed again, and says how
// often it was told.
constexpr char kProgram[] = R"(
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("up", flush=True)
while not told: time.sleep(0.01)
time.sleep(0.3)
open(os.environ["SAVED"] + os.environ["RANK"], "w").write(str(len(told)))
print("saved", flush=True)
)";

class Wrapped : public ::testing::TestWithParam<string> {
 protected:
  Wrapped() { folder_.AddScript("train", "#!/usr/bin/env python3\n" + string(kProgram)); }
  void Start(const std::vector<string>& options, const string& command) {
    DlaunchSurroundings surroundings;
    surroundings.environment = {"SAVED=" + folder_.path() + "/saved", "P=" + folder_.path() + "/train"};
    std::vector<string> arguments = options;
    arguments.insert(arguments.end(), {"bash", "-c", command});
    job_ = std::make_unique<DlaunchProcess>(arguments, surroundings);
  }
  // How often the rank's program was told to end; empty: it has not saved.
  string Saved(int rank) const {
    string times;
    std::getline(std::ifstream(folder_.path() + "/saved" + std::to_string(rank)), times);
    return times;
  }

  const TemporaryFolder folder_;
  std::unique_ptr<DlaunchProcess> job_;
};

TEST_P(Wrapped, TheProgramIsToldOnceAndHasTheGrace) {
  Start({"--grace", "15"}, GetParam());
  ASSERT_TRUE(job_->WaitForOutput("up")) << job_->err();
  ::kill(job_->pid(), SIGTERM);
  EXPECT_EQ(job_->Wait(kWrappersGone), 143) << job_->err();
  EXPECT_EQ(Saved(0), "1") << job_->out() << job_->err();
  EXPECT_NE(job_->out().find("saved"), string::npos) << job_->out();
  EXPECT_EQ(job_->WaitUntilGone(kWrappersGone), "");
}

INSTANTIATE_TEST_SUITE_P(By, Wrapped,
                         ::testing::Values("exec $P", "$P; echo end", "sh -c 'sh -c \"$P; true\"; true'; true",
                                           "exec dash -c '$P; true'", "setsid $P; true", "setsid -f $P; sleep 1000",
                                           "$P & wait", "($P; true); true", "trap 'echo trapped' TERM; $P; echo end",
                                           "trap '' TERM; $P; echo end", "trap 'true' EXIT; $P; true",
                                           "$P & p=$!; trap 'kill -TERM $p; wait $p' TERM; wait $p",
                                           "$P 2>&1 | cat; true", "exec > >(sed -u 's/^/X /'); $P; true",
                                           "exec python3 -c \"import os, subprocess; subprocess.run(os.environ['P'])\"",
                                           "exec python3 -c \"import os, pty; pty.spawn([os.environ['P']])\""));

TEST_F(Wrapped, AWrappedProgramHasTheGraceAfterANeighboursFailure) {
  Start({"--grace", "15", "-n", "2"},
        "if [ $RANK = 1 ]; then until [ -e $SAVED.up ]; do sleep 0.02; done; exit 7; fi; "
        "$P | while read line; do echo $line; : > $SAVED.up; done; true");
  EXPECT_EQ(job_->Wait(kWrappersGone), 7) << job_->err();
  EXPECT_EQ(Saved(0), "1") << job_->out() << job_->err();
}

TEST_F(Wrapped, ASecondSignalAtTheSameTimeIsTheSameOrder) {
  Start({"--grace", "15"}, "exec $P");
  ASSERT_TRUE(job_->WaitForOutput("up")) << job_->err();
  ::kill(job_->pid(), SIGSTOP);  // so that both have come when it looks, however busy this machine is
  ::kill(job_->pid(), SIGTERM);  // as `timeout` does: to the process, and to its group
  ::kill(job_->pid(), SIGINT);
  ::kill(job_->pid(), SIGCONT);
  const int status = job_->Wait(kWrappersGone);
  EXPECT_TRUE(status == 143 || status == 130) << status << job_->err();  // the kernel gives the lower number first
  EXPECT_EQ(Saved(0), "1");
}

TEST_F(Wrapped, AProgramThatDoesNotEndIsKilledAfterTheGraceAndNamed) {
  Start({"--grace", "0.5"}, "sh -c 'trap \"\" TERM; echo up; while :; do sleep 0.05; done'; true");
  ASSERT_TRUE(job_->WaitForOutput("up")) << job_->err();
  ::kill(job_->pid(), SIGTERM);
  EXPECT_EQ(job_->Wait(kWrappersGone), 143);
  EXPECT_NE(job_->err().find("did not end when asked and w"), string::npos) << job_->err();
}

TEST_F(Wrapped, AProgramThatASecondSignalCutShortIsNotBlamed) {
  Start({"--grace", "600"}, "(trap '' TERM; echo up; while :; do sleep 0.05; done) & wait");
  ASSERT_TRUE(job_->WaitForOutput("up")) << job_->err();
  ::kill(job_->pid(), SIGTERM);
  ASSERT_TRUE(job_->WaitUntil([&] { return job_->RankProcess(0) == 0; })) << "the shell ends, and the other lives on";
  EXPECT_TRUE(job_->WaitUntil([&] {
    ::kill(job_->pid(), SIGTERM);  // another order once 50 ms have passed
    return job_->err().find("ending the job at once") != string::npos;
  }));
  EXPECT_EQ(job_->Wait(kWrappersGone), 143);
  EXPECT_EQ(job_->err().find("did not end when asked"), string::npos) << job_->err();
}

TEST_F(Wrapped, ANoticeReachesTheProgramAndNotItsWrapper) {
  Start({"--grace", "15"}, "sh -c 'trap \"echo noted; exit 3\" USR1; echo up; while :; do sleep 0.05; done'; exit $?");
  ASSERT_TRUE(job_->WaitForOutput("up")) << job_->err();
  ::kill(job_->pid(), SIGUSR1);
  EXPECT_EQ(job_->Wait(kWrappersGone), 3) << job_->err();
  EXPECT_NE(job_->out().find("noted"), string::npos) << job_->out();
}

TEST(LeftBehind, OutputEndsWithTheLastProcessThatHoldsThePipe) {
  DlaunchProcess job(
      {"--no-prefix", "-n", "2", "bash", "-c", "exec > >(sed 's/^/X /'); for k in 1 2 3; do echo line $k; done"});
  EXPECT_EQ(job.Wait(kWrappersGone), 0) << job.err();
  EXPECT_EQ(CountOf(job.out(), "X line "), 6u) << job.out();
  DlaunchProcess late({"bash", "-c", "(sleep 0.4; echo late) & echo early"});
  EXPECT_EQ(late.Wait(kWrappersGone), 0) << late.err();
  EXPECT_EQ(late.out(), "[0] early\n[0] late\n");
}

TEST(LeftBehind, AFailedRanksLastWordsAreInTheReport) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--log-dir", folder.path() + "/logs", "bash", "-c",
                      "exec > >(while read line; do echo \"X $line\"; done) 2>&1; echo one; echo the last; exit 6"});
  EXPECT_EQ(job.Wait(kWrappersGone), 6);
  EXPECT_EQ(job.out(), "[0] X one\n[0] X the last\n");
  EXPECT_EQ(job.err().find("outside of the job"), string::npos) << job.err();
  string log;
  std::getline(std::ifstream(folder.path() + "/logs/rank-0.out"), log, '\0');
  EXPECT_EQ(log, "X one\nX the last\n");
}

TEST(LeftBehind, AProcessThatKeepsThePipeIsEndedSoonAndNamed) {
  std::vector<std::pair<string, std::unique_ptr<DlaunchProcess>>> jobs;
  for (const string how : {"sleep 1000 &", "setsid sleep 1000 &", "(sleep 1000 &);", "yes >&2 & sleep 0.1;",
                           "yes | sed s/y/n/ & sleep 0.1;"}) {
    jobs.emplace_back(
        how, std::make_unique<DlaunchProcess>(std::vector<string>{"--no-prefix", "bash", "-c", how + " echo done"}));
  }
  for (const auto& [how, job] : jobs) {
    EXPECT_EQ(job->Wait(kWrappersGone), 0) << how << job->err().substr(0, 1000);
    EXPECT_NE(job->err().find("rank 0 has ended and left "), string::npos) << how;
    EXPECT_EQ(job->WaitUntilGone(kWrappersGone), "") << how;
  }
}

TEST(LeftBehind, AFloodThatNobodyReadsEndsAndAFilterKeepsItsText) {
  DlaunchProcess job({"--no-prefix", "bash", "-c", "yes >&2 & exec > >(sleep 0.5; exec sed 's/^/X /'); seq 1 10000"});
  const auto floods = [&job] {
    for (const auto& [pid, command] : job.Processes()) {
      if (command.starts_with("yes")) return true;
    }
    return false;
  };
  using Clock = std::chrono::steady_clock;
  const auto unread_until = Clock::now() + std::chrono::seconds(4);
  while (!floods() && Clock::now() < unread_until) usleep(10'000);
  while (floods() && Clock::now() < unread_until + kWrappersGone) usleep(10'000);
  EXPECT_FALSE(floods()) << "nobody reads, and it lives on";
  while (Clock::now() < unread_until) usleep(10'000);
  EXPECT_EQ(job.Wait(kWrappersGone), 0) << job.err().substr(0, 1000);
  EXPECT_EQ(CountOf(job.out(), "X "), 10000u);
  EXPECT_NE(job.err().find("rank 0 has ended and left yes"), string::npos);
  EXPECT_EQ(job.WaitUntilGone(kWrappersGone), "");
}

TEST(LeftBehind, TheFirstFewRanksAreNamedAndTheOthersCounted) {
  DlaunchProcess job({"-n", "7", "bash", "-c", "sleep 1000 & echo done"});
  EXPECT_EQ(job.Wait(kWrappersGone), 0) << job.err();
  EXPECT_EQ(CountOf(job.err(), " has ended and left "), 4u) << job.err();
  EXPECT_NE(job.err().find("3 more ranks of this node left processes behind as well"), string::npos) << job.err();
}

TEST(LeftBehind, RanksHaveNoTerminal) {
  DlaunchSurroundings surroundings;
  surroundings.on_terminal = true;
  DlaunchProcess job({"-n", "2", "sh", "-c", "(: < /dev/tty) 2>/dev/null && echo has one || echo has none"},
                     surroundings);
  EXPECT_EQ(job.Wait(kWrappersGone), 0) << job.err();
  EXPECT_EQ(CountOf(job.out(), "has none"), 2u) << job.out();
}

}  // namespace
}  // namespace cohort::launcher
