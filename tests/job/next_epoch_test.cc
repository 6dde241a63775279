// Jobs whose ranks live on when others are lost, and join the next epoch in the same process.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;

std::vector<string> Job(std::vector<string> options, std::vector<string> arguments) {
  options.insert(options.end(), {"--", COHORT_NEXT_EPOCH_RANKS});
  options.insert(options.end(), arguments.begin(), arguments.end());
  return options;
}

// The process that says that it has met the others as that rank of an epoch; 0: none yet.
pid_t ProcessOf(const DlaunchProcess& job, int epoch, int rank, int size) {
  const string line = "[" + std::to_string(rank) + "] epoch " + std::to_string(epoch) + " rank " +
                      std::to_string(rank) + " of " + std::to_string(size) + " met, pid ";
  const size_t at = job.out().find(line);
  return at == string::npos ? 0 : std::atoi(job.out().c_str() + at + line.size());
}

std::vector<pid_t> WaitForEpoch(DlaunchProcess* job, int epoch, int size) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(job->WaitUntil([&] { return ProcessOf(*job, epoch, rank, size) != 0; }))
        << "epoch " << epoch << " rank " << rank << "\n"
        << job->err();
    pids.push_back(ProcessOf(*job, epoch, rank, size));
  }
  return pids;
}

// Ranks that have the same process in both epochs.
std::vector<int> Stayed(const std::vector<pid_t>& before, const std::vector<pid_t>& after) {
  std::vector<int> stayed;
  for (size_t rank = 0; rank < after.size(); ++rank) {
    if (before.at(rank) == after[rank]) stayed.push_back(static_cast<int>(rank));
  }
  return stayed;
}

TEST(NextEpoch, SurvivorsStayAndTheDeadRankIsStartedAgain) {
  DlaunchProcess job(Job({"--nproc-per-node", "4", "--max-restarts", "3"}, {"3"}));
  std::vector<pid_t> before = WaitForEpoch(&job, 1, 4);
  ::kill(before[2], SIGKILL);
  std::vector<pid_t> after = WaitForEpoch(&job, 2, 4);
  EXPECT_EQ(Stayed(before, after), (std::vector<int>{0, 1, 3}));
  before = after;
  ::kill(before[0], SIGKILL);
  after = WaitForEpoch(&job, 3, 4);
  EXPECT_EQ(Stayed(before, after), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("dlaunch: restart 2 of 3"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(NextEpoch, SurvivorsStayOnAllNodes) {
  DlaunchProcess job(Job({"--simulate-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "1"}, {"2"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 4);
  ::kill(before[3], SIGKILL);
  EXPECT_EQ(Stayed(before, WaitForEpoch(&job, 2, 4)), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

// The job is told to stop after 100 ms.
TEST(NextEpoch, ARankThatLeavesWithinTheGraceStays) {
  DlaunchProcess job(Job({"--nproc-per-node", "3", "--max-restarts", "1"}, {"2", "slow"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 3);
  ::kill(before[1], SIGKILL);
  EXPECT_EQ(Stayed(before, WaitForEpoch(&job, 2, 3)), (std::vector<int>{0, 2}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
}

TEST(NextEpoch, ASpareTakesTheRanksOfALostNode) {
  DlaunchProcess job(
      Job({"--simulate-nodes", "4", "--spares", "1", "--nproc-per-node", "2", "--max-restarts", "1"}, {"2"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 6);
  ::kill(job.AgentProcess(1), SIGKILL);
  EXPECT_EQ(Stayed(before, WaitForEpoch(&job, 2, 6)), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(NextEpoch, RanksAreNumberedAgainWhenANodeIsLost) {
  DlaunchProcess job(
      Job({"--simulate-nodes", "3", "--nnodes", "2:3", "--nproc-per-node", "2", "--max-restarts", "1"}, {"2"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 6);
  ::kill(job.AgentProcess(1), SIGKILL);
  const std::vector<pid_t> after = WaitForEpoch(&job, 2, 4);
  EXPECT_EQ(after, (std::vector<pid_t>{before[0], before[1], before[4], before[5]}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
}

TEST(NextEpoch, ARankThatDoesNotComeInTimeIsStartedAgain) {
  DlaunchProcess job(Job({"--nproc-per-node", "3", "--max-restarts", "1", "--grace", "4"}, {"2", "dawdles"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 3);
  ::kill(before[2], SIGKILL);
  EXPECT_EQ(Stayed(before, WaitForEpoch(&job, 2, 3)), (std::vector<int>{0}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(NextEpoch, AllRanksMayBeginAgainWithoutAFailure) {
  DlaunchProcess job(Job({"--nproc-per-node", "3", "--max-restarts", "1"}, {"2", "again"}));
  const std::vector<pid_t> before = WaitForEpoch(&job, 1, 3);
  EXPECT_EQ(Stayed(before, WaitForEpoch(&job, 2, 3)), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("ranks 0-2 left the epoch to begin another; no rank had failed"), string::npos) << job.err();
}

TEST(NextEpoch, TheJobEndsWithoutARestartLeft) {
  DlaunchProcess job(Job({"--nproc-per-node", "3", "--max-restarts", "1"}, {"9"}));
  const std::vector<pid_t> first = WaitForEpoch(&job, 1, 3);
  ::kill(first[1], SIGKILL);
  const std::vector<pid_t> second = WaitForEpoch(&job, 2, 3);
  ::kill(second[2], SIGKILL);
  EXPECT_EQ(job.Wait(), 128 + SIGKILL) << job.err();
  EXPECT_NE(job.err().find("rank 2 ("), string::npos) << job.err();
  EXPECT_NE(job.err().find("no restart: it has been restarted 1 time"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(NextEpoch, NextEpochIsRefusedWhereThereIsNone) {
  DlaunchProcess job(Job({"--nproc-per-node", "2"}, {"2", "again"}));
  EXPECT_EQ(job.Wait(), 1) << job.err();
  EXPECT_NE(job.err().find("there is no next epoch"), string::npos) << job.err();
  DlaunchProcess strict(Job({"--nproc-per-node", "1", "--max-restarts", "1"}, {"3", "strict"}));
  EXPECT_EQ(strict.Wait(), 1) << strict.err();
  EXPECT_NE(strict.err().find("without RuntimeOptions::stays"), string::npos) << strict.err();
}

}  // namespace
}  // namespace cohort::launcher
