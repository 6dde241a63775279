// Jobs that are told to end early: before the first rank has started, or while agents are lost.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>

#include "cohort/runtime/base/sanitizer.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;

// An ssh that says what a host has, and then leads to no agent. Each way to one leaves a file in the folder.
string AddHangingSsh(const TemporaryFolder& folder) {
  const string dlaunch = std::filesystem::absolute(ProgramFolder()).string() + "/dlaunch";
  return folder.AddScript("ssh", "#!/bin/sh\ncase \"$*\" in *--inventory*) exec " + dlaunch +
                                     " agent --inventory;; esac\nmkdir -p " + folder.path() + "/ways\n: > " +
                                     folder.path() + "/ways/$$\nexec sleep 1000\n");
}

size_t Ways(const TemporaryFolder& folder) {
  std::error_code none;
  size_t count = 0;
  for ([[maybe_unused]] const auto& way : std::filesystem::directory_iterator(folder.path() + "/ways", none)) ++count;
  return count;
}

TEST(Starting, OneInterruptEndsAJobWhoseHostHangs) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--hosts", "elsewhere", "--ssh", AddHangingSsh(folder), "--grace", "600", "true"});
  ASSERT_TRUE(job.WaitUntil([&] { return Ways(folder) == 1; })) << job.err();
  ::kill(job.pid(), SIGINT);
  EXPECT_EQ(job.Wait(), 130) << job.err();
  EXPECT_NE(job.err().find("dlaunch: SIGINT: ending the job at once\ndlaunch: exit status 130\n"), string::npos)
      << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

// Connections are begun in turn, and it waits for those that hang.
TEST(Starting, AnInterruptEndsTheJobWhileManyHostsAreReached) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--hosts", "n[1-70]", "--ssh", AddHangingSsh(folder), "true"});
  ASSERT_TRUE(job.WaitUntil([&] { return Ways(folder) >= 64; })) << job.err();
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_TRUE(job.err().ends_with("dlaunch: SIGTERM: ending the job at once\ndlaunch: exit status 143\n")) << job.err();
  EXPECT_EQ(Ways(folder), 64u);
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

// Loading dlaunch a second time would take a third of the time of a short job. A copy has the same addresses.
TEST(Starting, TheOnlyAgentIsACopyOfDlaunch) {
  DlaunchProcess job({"-n", "1", "sh", "-c",
                      "exec 2>&1; agent=$PPID; launcher=$(sed -n 's/^PPid:.//p' /proc/$agent/status);"
                      "tr '\\0' ' ' < /proc/$agent/cmdline; echo;"
                      "for process in $agent $launcher; do head -1 /proc/$process/maps; done | uniq | wc -l"});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] dlaunch agent --node=0 "), string::npos) << job.out();
#if !COHORT_THREAD_SANITIZER  // a thread of its own: the agent is executed
  EXPECT_NE(job.out().find("[0] 1\n"), string::npos) << job.out();
#endif
}

// As agents do that get no answer on a machine which is too busy to start them all.
TEST(Starting, AStopIsTheCauseThoughTheRendezvousIsLostAfterIt) {
  DlaunchProcess job({"--simulate-nodes", "2", "sh", "-c", "trap '' TERM; echo up; sleep 1000 & wait; wait"});
  ASSERT_TRUE(job.WaitForOutput("[0] up") && job.WaitForOutput("[1] up")) << job.err();
  ::kill(job.pid(), SIGTERM);
  ASSERT_TRUE(job.WaitUntil([&] { return job.err().find("SIGTERM: the job is told to end") != string::npos; }));
  ::kill(job.AgentProcess(0), SIGKILL);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_NE(job.err().find("dlaunch: stopped by SIGTERM; then the agent of node0"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST(Starting, ARankThatIsStoppedWhenTheJobEndsIsReportedSo) {
  DlaunchProcess job({"-n", "2", "--stopped", "wait", "--grace", "0.5", "sh", "-c", "echo up; exec sleep 1000"});
  ASSERT_TRUE(job.WaitForOutput("[0] up") && job.WaitForOutput("[1] up")) << job.err();
  ::kill(job.RankProcess(0), SIGSTOP);
  ASSERT_TRUE(job.WaitUntil([&] { return job.err().find("is stopped (SIGSTOP)") != string::npos; })) << job.err();
  ::kill(job.RankProcess(1), SIGKILL);
  EXPECT_EQ(job.Wait(), 137) << job.err();
  EXPECT_NE(job.err().find("was stopped (SIGSTOP), could not end when asked and was killed"), string::npos)
      << job.err();
}

}  // namespace
}  // namespace cohort::launcher
