// Real jobs that lose the node which hosts their rendezvous, and go on.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/lost_node.h"

namespace cohort::launcher {
namespace {

using std::string;

TEST(Standby, AStandbyTakesOverFromAKilledHostAndASpareTakesItsRanks) {
  const auto job = Start({"--simulate-nodes", "4", "--spares", "1", "--standby", "1"}, 2);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 0, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  ExpectSaid(*job, "node1 takes over as the rendezvous' host from node0\n");
  ExpectSaid(*job, "the spare node node3 takes the place of node0: ranks 0 and 1\n");
  EXPECT_EQ(job->err().find("can't take over"), string::npos) << job->err();
  for (int rank = 0; rank < 6; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 6, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, AStandbyTakesOverFromAStoppedHostAndTheJobShrinks) {
  const auto job = Start({"--simulate-nodes", "3", "--nnodes", "1:3", "--standby", "1"}, 2);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 0, SIGSTOP);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  ExpectSaid(*job, "the job goes on without node0");
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 4, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, OneStandbyAfterTheOtherTakesOver) {
  const auto job = Start({"--simulate-nodes", "5", "--spares", "2", "--standby", "2"}, 3);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 0, SIGKILL);
  WaitForRanks(job.get(), 2, 3);
  // Whichever was in sync first.
  const int host = job->err().find("node1 takes over as the rendezvous' host from node0\n") != string::npos ? 1 : 2;
  SignalAgent(*job, host, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  ExpectSaid(*job, "node" + std::to_string(3 - host) + " takes over as the rendezvous' host from node" +
                       std::to_string(host) + "\n");
  for (int rank = 0; rank < 6; ++rank) EXPECT_NE(job->out().find(Line(3, rank, 6, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, ALostHostWithoutAStandbyEndsTheJob) {
  const auto job = Start({"--simulate-nodes", "5", "--spares", "2", "--standby", "1"}, 3);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 1, SIGKILL);  // the standby itself
  WaitForRanks(job.get(), 2, 3);
  SignalAgent(*job, 0, SIGKILL);
  EXPECT_EQ(job->Wait(), 125) << job->err();
  ExpectSaid(*job, "it hosted the rendezvous, without which the job can't go on");
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, RanksGoOnMeanwhileWhereTheJobContinues) {
  TemporaryFolder folder;
  const string flag = folder.path() + "/go";
  DlaunchProcess job({"--simulate-nodes", "3", "--standby", "1", "--on-failure", "continue", "sh", "-c",
                      "echo here; while [ ! -e " + flag + " ]; do sleep 0.05; done; echo done"});
  ASSERT_TRUE(job.WaitForOutput("[0] here\n") && job.WaitForOutput("[1] here\n") && job.WaitForOutput("[2] here\n"));
  SignalAgent(job, 0, SIGKILL);
  ASSERT_TRUE(job.WaitUntil([&] { return job.err().find("; the job goes on\n") != string::npos; })) << job.err();
  std::ofstream(flag) << "go";
  EXPECT_NE(job.Wait(), 0) << job.err();  // of the lost rank
  for (const char* line : {"[1] done\n", "[2] done\n"}) EXPECT_NE(job.out().find(line), string::npos) << job.err();
  ExpectSaid(job, "the agent of node0");
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Standby, AStandbyPrintsNothingWhereNothingIsLost) {
  const auto job = Start({"--simulate-nodes", "3", "--nnodes", "1:3", "--standby", "2"}, 1);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  EXPECT_EQ(job->err().find("take"), string::npos) << job->err();
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, TheNextHostEndsTheJobForTheUser) {
  const auto job = Start({"--simulate-nodes", "4", "--spares", "1", "--standby", "1"}, 3);
  WaitForRanks(job.get(), 1, 3);
  SignalAgent(*job, 0, SIGKILL);
  WaitForRanks(job.get(), 2, 3);
  ::kill(job->pid(), SIGINT);
  EXPECT_EQ(job->Wait(), 130) << job->err();
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Standby, ImpossibleStandbysAreRefused) {
  ExpectRefused({"--simulate-nodes", "3", "--standby", "1"}, "lost with it", "add --max-restarts");
  ExpectRefused({"--simulate-nodes", "3", "--standby", "1", "--max-restarts", "2"}, "take the lost node's place",
                "--spares 1");
  ExpectRefused({"--simulate-nodes", "3", "--standby", "3", "--on-failure", "continue"}, "can't stand by for itself",
                "give 2 at the most");
  ExpectRefused({"--simulate-nodes", "3", "--standby", "2", "--max-restarts", "1", "--spares", "1"},
                "can't stand by for itself", "give 1 at the most");
  ExpectRefused({"--standby", "1", "--on-failure", "continue"}, "no other that could take over", "leave it out");
  ExpectRefused({"--simulate-nodes", "3", "--standby", "-1", "--on-failure", "continue"}, "--standby '-1'",
                "whole number");
}

}  // namespace
}  // namespace cohort::launcher
