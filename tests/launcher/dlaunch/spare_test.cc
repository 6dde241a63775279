// Real jobs that lose a node and go on: a spare takes its place, or the job shrinks.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/lost_node.h"

namespace cohort::launcher {
namespace {

using std::string;

TEST(Spare, ASpareTakesTheRanksOfANodeWhoseAgentIsKilled) {
  const auto job = Start({"--simulate-nodes", "4", "--spares", "1"}, 2);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  ExpectSaid(*job, "the spare node node3 takes the place of node1: ranks 2 and 3\n");
  for (int rank = 0; rank < 6; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 6, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

// Its ranks run on while it can say nothing: nobody may take their place before they are gone.
TEST(Spare, ASpareTakesTheRanksOfANodeWhoseAgentIsStopped) {
  const auto job = Start({"--simulate-nodes", "3", "--spares", "1"}, 2);
  WaitForRanks(job.get(), 1, 2);
  SignalAgent(*job, 1, SIGSTOP);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 4, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Spare, ALostSpareIsMissedOnlyWhenItIsNeeded) {
  const auto job = Start({"--simulate-nodes", "3", "--spares", "1"}, 2);
  WaitForRanks(job.get(), 1, 2);
  SignalAgent(*job, 2, SIGKILL);
  ASSERT_TRUE(job->WaitUntil([&] { return job->err().find("the agent of node2 (pid ") != string::npos; }))
      << job->err();
  SignalAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 125) << job->err();
  ExpectSaid(*job, "there is no spare left");
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Shrinking, RanksAreNumberedAgainAndTheUserIsTold) {
  const auto job = Start({"--simulate-nodes", "3", "--nnodes", "2:4"}, 2);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  ExpectSaid(*job, "the job goes on without node1, with 2 nodes and 4 ranks, which are numbered again\n");
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 4, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Shrinking, TheJobDoesNotShrinkBelowTheLeast) {
  const auto job = Start({"--simulate-nodes", "2", "--nnodes", "2:2"}, 2);
  WaitForRanks(job.get(), 1, 2);
  SignalAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 125) << job->err();
  ExpectSaid(*job, "fewer than the 2 that --nnodes asks for");
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Elasticity, ThisMachineIsEnoughWhereOneNodeIs) {
  DlaunchProcess job({"--nnodes", "1:4", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 0 of 1\n");
  ExpectRefused({"--nnodes", "2:4"}, "--nnodes 2:4: there is one node here", "--simulate-nodes 2");
}

TEST(Elasticity, ImpossibleCountsOfNodesAreRefused) {
  ExpectRefused({"--simulate-nodes", "3", "--spares", "1"}, "when the job is restarted", "add --max-restarts");
  ExpectRefused({"--simulate-nodes", "2", "--spares", "2", "--max-restarts", "1"}, "none would be left", "lower it");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "4:2"}, "the least and the most nodes", "2:4");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "2:"}, "--nnodes '2:'", "whole number");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "1:2"}, "contradict", "leave --nnodes out");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "2:3", "-n", "6"}, "fixes the number of ranks",
                "--nproc-per-node");
}

}  // namespace
}  // namespace cohort::launcher
