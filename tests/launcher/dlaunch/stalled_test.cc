// Nobody takes what dlaunch prints for a while, or dlaunch itself is stopped, over the end of the job: nothing is lost,
// and a user who does not want to wait can end it all the same. The pauses are longer than everything that dlaunch and
// its agents wait for by themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/stalled_reader.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;

constexpr seconds kPause{10};

// A script for sh: waits for the file, prints `bytes` bytes in lines of 99, and a last line.
string PrintAfter(const string& file, const string& bytes) {
  return "echo up; while [ ! -e " + file + " ]; do sleep 0.05; done; head -c " + bytes +
         " /dev/zero | tr '\\0' x | fold -w 99; echo; echo end of $RANK";
}

bool AllAreUp(DlaunchProcess* job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (!job->WaitForOutput("[" + std::to_string(rank) + "] up\n")) return false;
  }
  return true;
}

bool NoneRuns(const DlaunchProcess& job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (job.RankProcess(rank) != 0) return false;
  }
  return true;
}

void ExpectWhole(const DlaunchProcess& job, int first_rank, int last_rank, int bytes_of_each) {
  EXPECT_EQ(std::count(job.out().begin(), job.out().end(), 'x'), (last_rank - first_rank + 1) * bytes_of_each);
  for (int rank = first_rank; rank <= last_rank; ++rank) {
    EXPECT_NE(job.out().find("end of " + std::to_string(rank) + "\n"), string::npos) << "rank " << rank;
  }
}

// A signal that is sent while the same one is pending would be one with it.
bool SendAndWaitUntilTaken(const DlaunchProcess& job, int signal) {
  ::kill(job.pid(), signal);
  return WaitUnread([&] {
    std::ifstream file("/proc/" + std::to_string(job.pid()) + "/status");
    string word, pending;
    while (file >> word) {
      if (word == "ShdPnd:") file >> pending;
    }
    return !pending.empty() && (std::stoull(pending, nullptr, 16) >> (signal - 1) & 1) == 0;
  });
}

bool Blocks(const DlaunchProcess& job, int signal) {
  std::ifstream file("/proc/" + std::to_string(job.pid()) + "/status");
  string word, blocked;
  while (file >> word) {
    if (word == "SigBlk:") file >> blocked;
  }
  return !blocked.empty() && (std::stoull(blocked, nullptr, 16) >> (signal - 1) & 1) != 0;
}

// The way says this once the agent's output has ended, before it is killed.
TEST(Stalled, AnSshThatPrintsMuchFillsNoMemory) {
  const TemporaryFolder folder;
  const string way = folder.AddScript("ssh", "#!/bin/sh\ncase \"$*\" in *--inventory*) exec " +
                                                 std::filesystem::absolute(ProgramFolder()).string() +
                                                 "/dlaunch agent --inventory;; esac\nexec yes a word more >&2\n");
  DlaunchProcess job({"--hosts", "elsewhere", "--ssh", way, "true"});
  const auto talks = [&] { return !job.ProcessesWith("yes a word more").empty(); };
  const auto most_memory = [&] {
    std::ifstream file("/proc/" + std::to_string(job.pid()) + "/status");
    string word;
    size_t kilobytes = 0;
    while (file >> word) {
      if (word == "VmHWM:") file >> kilobytes;
    }
    return kilobytes;
  };
  ASSERT_TRUE(WaitUnread(talks)) << job.err();
  const size_t before = most_memory();
  ASSERT_GT(before, 0u);
  EXPECT_TRUE(WaitUnread([&] { return !talks(); }));
  EXPECT_LT(most_memory(), before + (48u << 10));
}

// One job's dlaunch is stopped: its ranks print more than a pipe holds and less than an agent does, so that they end
// meanwhile. Nobody reads the other job: its ten nodes print more than dlaunch keeps, and none more than its agent
// does, so that all ranks end meanwhile. Its second pause comes when dlaunch knows that the job is over, and again
// keeps as much as it can.
TEST(Stalled, PausesOfDlaunchAndOfItsReaderLoseNothing) {
  constexpr int kNodes = 10;
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  DlaunchProcess stopped({"--simulate-nodes", "2", "sh", "-c", PrintAfter(go, "500000")});
  DlaunchProcess unread({"--simulate-nodes", std::to_string(kNodes), "sh", "-c",
                         PrintAfter(go, "$([ $RANK = 0 ] && echo 100 || echo 950000)")});
  ASSERT_TRUE(AllAreUp(&stopped, 2)) << stopped.err();
  ASSERT_TRUE(AllAreUp(&unread, kNodes)) << unread.err();
  ::kill(stopped.pid(), SIGSTOP);
  std::ofstream(go) << "";
  EXPECT_TRUE(WaitUnread([&] { return NoneRuns(stopped, 2) && NoneRuns(unread, kNodes); }));
  std::this_thread::sleep_for(kPause);
  ::kill(stopped.pid(), SIGCONT);
  EXPECT_EQ(stopped.Wait(), 0) << stopped.err();
  ExpectWhole(stopped, 0, 1, 500000);
  EXPECT_EQ(stopped.WaitUntilGone(kSoon), "");
  ASSERT_TRUE(unread.WaitUntil([&] { return unread.out().size() > 3'000'000; })) << unread.err();
  std::this_thread::sleep_for(kPause);
  EXPECT_EQ(unread.Wait(), 0) << unread.err();
  EXPECT_EQ(std::count(unread.out().begin(), unread.out().end(), 'x'), 100 + (kNodes - 1) * 950000);
  EXPECT_EQ(unread.WaitUntilGone(kSoon), "");
}

TEST(Stalled, AgentsThatKeepOutputDoNotWaitForADeadDlaunch) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  DlaunchProcess job({"--simulate-nodes", "2", "sh", "-c", PrintAfter(go, "500000")});
  ASSERT_TRUE(AllAreUp(&job, 2)) << job.err();
  ::kill(job.pid(), SIGSTOP);
  std::ofstream(go) << "";
  EXPECT_TRUE(WaitUnread([&] { return NoneRuns(job, 2); }));
  EXPECT_EQ(job.ProcessesWith("dlaunch agent").size(), 2u);
  ::kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.Wait(), 137);
  EXPECT_EQ(job.WaitUntilGone(kSoon), "");
}

// The ranks have ended well, and what they have printed waits for its reader.
TEST(Stalled, ALateNoticeEndsNothing) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  DlaunchProcess job({"sh", "-c", PrintAfter(go, "300000")});
  ASSERT_TRUE(AllAreUp(&job, 1)) << job.err();
  std::ofstream(go) << "";
  EXPECT_TRUE(WaitUnread([&] { return NoneRuns(job, 1) && job.ProcessesWith("dlaunch agent").empty(); }));
  EXPECT_TRUE(WaitUnread([&] { return !Blocks(job, SIGTERM); }));  // from then on it ends as any program
  for (const int signal : {SIGUSR1, SIGUSR2}) ::kill(job.pid(), signal);
  EXPECT_EQ(job.Wait(), 0) << job.err();
  ExpectWhole(job, 0, 0, 300000);
}

TEST(Stalled, ASecondInterruptDoesNotWaitForAReader) {
  DlaunchProcess job({"--grace", "3600", "yes", string(1000, 'y')});
  ASSERT_TRUE(WaitUnread([&] { return job.RankProcess(0) != 0; }));
  ASSERT_TRUE(IsStuck(job.RankProcess(0)));
  EXPECT_TRUE(SendAndWaitUntilTaken(job, SIGINT));
  EXPECT_TRUE(WaitUnread([&] {  // one that comes at once is taken for the first
    ::kill(job.pid(), SIGINT);
    return job.Processes().empty();
  }));
  EXPECT_EQ(job.Wait(), 130);
}

// The pipe of a killed agent stays open in its sentinel.
TEST(Stalled, ASecondInterruptDoesNotWaitForASentinelThatIsStopped) {
  DlaunchProcess job({"--grace", "3600", "sh", "-c", "echo up; sleep 1000"});
  ASSERT_TRUE(AllAreUp(&job, 1)) << job.err();
  ASSERT_TRUE(job.WaitUntil([&] { return job.ProcessesWith("dlaunch sentinel").size() == 1; }));
  ::kill(job.ProcessesWith("dlaunch sentinel")[0], SIGSTOP);
  ::kill(job.AgentProcess(0), SIGKILL);
  EXPECT_TRUE(SendAndWaitUntilTaken(job, SIGINT));
  EXPECT_TRUE(WaitUnread([&] {
    ::kill(job.pid(), SIGINT);
    return job.Processes().empty();
  }));
  EXPECT_EQ(job.Wait(kSoon), 130) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kSoon), "");
}

}  // namespace
}  // namespace cohort::launcher
