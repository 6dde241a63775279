// Real jobs that lose a node and go on: a spare takes its place, or the job shrinks.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
constexpr std::chrono::seconds kGone{20};

// Ranks that live until their job is restarted, and then end.
constexpr char kUntilRestarted[] =
    "echo epoch $COHORT_EPOCH rank $RANK of $WORLD_SIZE node $NODE_RANK; [ $COHORT_EPOCH = 1 ] && sleep 1000; exit 0";

string Line(int epoch, int rank, int size, int node) {
  const string name = std::to_string(rank);
  return "[" + name + "] epoch " + std::to_string(epoch) + " rank " + name + " of " + std::to_string(size) + " node " +
         std::to_string(node) + "\n";
}

std::unique_ptr<DlaunchProcess> Start(std::vector<string> options) {
  options.insert(options.end(), {"--nproc-per-node", "2", "--max-restarts", "3", "sh", "-c", kUntilRestarted});
  return std::make_unique<DlaunchProcess>(options);
}

void WaitForRanks(DlaunchProcess* job, int nodes) {
  for (int rank = 0; rank < 2 * nodes; ++rank) {
    const string line = Line(1, rank, 2 * nodes, rank / 2);
    ASSERT_TRUE(job->WaitUntil([&] { return job->out().find(line) != string::npos; })) << job->err();
  }
}

void KillAgent(const DlaunchProcess& job, int index, int signal) {
  const std::vector<pid_t> found = job.ProcessesWith("agent --node=" + std::to_string(index));
  ASSERT_EQ(found.size(), 1u) << job.err();
  ::kill(found[0], signal);
}

TEST(Spare, TakesTheRanksOfANodeWhoseAgentIsKilled) {
  const auto job = Start({"--simulate-nodes", "4", "--spares", "1"});
  WaitForRanks(job.get(), 3);
  KillAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  EXPECT_NE(job->err().find("the spare node node3 takes the place of node1: ranks 2 and 3\n"), string::npos)
      << job->err();
  for (int rank = 0; rank < 6; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 6, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

// Its ranks run on while it can say nothing: nobody may take their place before they are gone.
TEST(Spare, TakesTheRanksOfANodeWhoseAgentIsStopped) {
  const auto job = Start({"--simulate-nodes", "3", "--spares", "1"});
  WaitForRanks(job.get(), 2);
  KillAgent(*job, 1, SIGSTOP);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 4, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Spare, ThatIsLostIsMissedOnlyWhenItIsNeeded) {
  const auto job = Start({"--simulate-nodes", "3", "--spares", "1"});
  WaitForRanks(job.get(), 2);
  KillAgent(*job, 2, SIGKILL);
  ASSERT_TRUE(job->WaitUntil([&] { return job->err().find("the agent of node2 (pid ") != string::npos; }))
      << job->err();
  KillAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 125) << job->err();
  EXPECT_NE(job->err().find("there is no spare left"), string::npos) << job->err();
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Shrinking, RanksAreNumberedAnewAndTheUserIsTold) {
  const auto job = Start({"--simulate-nodes", "3", "--nnodes", "2:4"});
  WaitForRanks(job.get(), 3);
  KillAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 0) << job->err();
  EXPECT_NE(job->err().find("the job goes on without node1, with 2 nodes and 4 ranks, which are numbered anew\n"),
            string::npos)
      << job->err();
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(job->out().find(Line(2, rank, 4, rank / 2)), string::npos) << rank;
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

TEST(Shrinking, NotBelowTheLeast) {
  const auto job = Start({"--simulate-nodes", "2", "--nnodes", "2:2"});
  WaitForRanks(job.get(), 2);
  KillAgent(*job, 1, SIGKILL);
  EXPECT_EQ(job->Wait(), 125) << job->err();
  EXPECT_NE(job->err().find("fewer than the 2 that --nnodes asks for"), string::npos) << job->err();
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

void ExpectRefused(std::vector<string> options, const string& cause, const string& remedy) {
  options.emplace_back("true");
  DlaunchProcess job(options);
  EXPECT_EQ(job.Wait(), 2) << job.err();
  EXPECT_NE(job.err().find(cause), string::npos) << job.err();
  EXPECT_NE(job.err().find(remedy), string::npos) << job.err();
}

TEST(Elasticity, NonsenseIsRefused) {
  ExpectRefused({"--simulate-nodes", "3", "--spares", "1"}, "when the job is restarted", "add --max-restarts");
  ExpectRefused({"--simulate-nodes", "2", "--spares", "2", "--max-restarts", "1"}, "none would be left", "lower it");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "4:2"}, "the least and the most nodes", "2:4");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "2:"}, "--nnodes ''", "whole number");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "1:2"}, "contradict", "leave --nnodes out");
  ExpectRefused({"--simulate-nodes", "3", "--nnodes", "2:3", "-n", "6"}, "fixes the number of ranks",
                "--nproc-per-node");
}

}  // namespace
}  // namespace cohort::launcher
