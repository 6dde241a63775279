// dlaunch --on-failure continue, a job that shrinks and is preempted: those left agree on a step without the lost rank.
#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;

constexpr int kRanks = 4;

std::vector<string> Job(int nodes, const string& how, const string& folder) {
  return {"--on-failure",
          "continue",
          "--simulate-nodes",
          std::to_string(nodes),
          "--nproc-per-node",
          std::to_string(kRanks / nodes),
          "--",
          COHORT_SHRINK_PREEMPTION_RANKS,
          how,
          folder};
}

void WaitForAll(DlaunchProcess* job, int ranks, const string& text) {
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job->WaitForOutput("[" + std::to_string(rank) + "] " + text)) << job->out() << job->err();
  }
}

// Expects that the remaining ranks report the same step to stop before.
void ExpectAllStoppedTogether(DlaunchProcess* job) {
  EXPECT_EQ(job->Wait(), 128 + SIGKILL) << job->err();  // of the lost rank, as always
  EXPECT_EQ(job->err().find("wrong:"), string::npos) << job->err();
  std::set<string> stops;
  for (int rank = 0; rank < kRanks - 1; ++rank) {
    const size_t at = job->out().find("[" + std::to_string(rank) + "] stopped before step ");
    ASSERT_NE(at, string::npos) << "rank " << rank << "\n" << job->out() << job->err();
    stops.insert(job->out().substr(at + 4, job->out().find('\n', at) - at - 4));
  }
  EXPECT_EQ(stops.size(), 1u) << job->out();
  EXPECT_TRUE(stops.begin()->ends_with(" among " + std::to_string(kRanks - 1))) << *stops.begin();
  EXPECT_EQ(job->WaitUntilGone(std::chrono::seconds(20)), "");
}

class ShrinkAndPreemption : public testing::TestWithParam<int> {};

TEST_P(ShrinkAndPreemption, SurvivorsStopTogetherWhenARankIsLostAfterItsAnswer) {
  const TemporaryFolder folder;
  DlaunchProcess job(Job(GetParam(), "told", folder.path()));
  WaitForAll(&job, kRanks, "under way");
  ::kill(job.pid(), SIGUSR1);
  ExpectAllStoppedTogether(&job);
  // All had begun step 2, and go back to it.
  EXPECT_NE(job.out().find("[0] stopped before step 3 among 3"), string::npos) << job.out();
}

TEST_P(ShrinkAndPreemption, ANoticeAfterTheLossReachesTheSurvivors) {
  const TemporaryFolder folder;
  DlaunchProcess job(Job(GetParam(), "before", folder.path()));
  WaitForAll(&job, kRanks - 1, "goes on");
  ::kill(job.pid(), SIGUSR1);
  ExpectAllStoppedTogether(&job);
}

INSTANTIATE_TEST_SUITE_P(Nodes, ShrinkAndPreemption, testing::Values(1, 2));

}  // namespace
}  // namespace cohort::launcher
