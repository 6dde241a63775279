#include "cohort/launcher/front_end/job_end.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cohort/launcher/base/exit_status.h"

namespace cohort::launcher {
namespace {

v1::JobReport ReportWith(int exit_code) {
  v1::JobReport report;
  report.set_exit_code(exit_code);
  return report;
}

TEST(JobStage, HasNoOtherTransitionsThanThese) {
  using enum JobStage;
  const std::set<std::pair<JobStage, JobStage>> legal = {{kRunning, kOver}, {kRunning, kKilled}, {kOver, kKilled}};
  for (const JobStage from : {kRunning, kOver, kKilled}) {
    for (const JobStage to : {kRunning, kOver, kKilled}) EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}));
  }
}

TEST(StopWish, HasNoOtherTransitionsThanThese) {
  using enum StopWish;
  const std::set<std::pair<StopWish, StopWish>> legal = {{kNone, kInOrder}, {kNone, kAtOnce}, {kInOrder, kAtOnce}};
  for (const StopWish from : {kNone, kInOrder, kAtOnce}) {
    for (const StopWish to : {kNone, kInOrder, kAtOnce}) EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}));
  }
}

TEST(JobEnd, TheFirstReportStays) {
  JobEnd end;
  EXPECT_FALSE(end.ending());
  EXPECT_TRUE(end.Finish(ReportWith(3)));
  EXPECT_FALSE(end.Finish(ReportWith(4)));
  EXPECT_EQ(end.report().exit_code(), 3);
  EXPECT_TRUE(end.over());
  EXPECT_FALSE(end.in_a_hurry());
}

TEST(JobEnd, AStopIsTheCauseOfReportsThatFollow) {
  JobEnd end;
  EXPECT_EQ(end.ReportOf("the agent was killed", "it was").exit_code(), kExitLauncher);
  EXPECT_EQ(end.ReportOf("the agent was killed", "it was").headline(), "the agent was killed");
  EXPECT_TRUE(end.Stop("SIGTERM", 143, /*at_once=*/false));
  EXPECT_FALSE(end.Stop("SIGINT", 130, /*at_once=*/false));
  EXPECT_TRUE(end.ending());
  EXPECT_FALSE(end.in_a_hurry());
  const v1::JobReport killed = end.ReportOf("the agent was killed", "then it was killed");
  EXPECT_EQ(killed.headline(), "stopped by SIGTERM; then it was killed");
  EXPECT_EQ(killed.exit_code(), 143);
  EXPECT_EQ(killed.culprit_rank(), -1);
}

TEST(JobEnd, AStopAtOnceTakesTheNameOfTheLatest) {
  JobEnd end;
  EXPECT_TRUE(end.Stop("SIGTERM", 143, /*at_once=*/false));
  EXPECT_TRUE(end.Stop("SIGINT", 130, /*at_once=*/true));
  EXPECT_TRUE(end.in_a_hurry());
  EXPECT_EQ(end.ReportOfStop("").headline(), "stopped by SIGINT, at once");
  EXPECT_EQ(end.ReportOfStop("rank 1 exited with code 7").headline(),
            "rank 1 exited with code 7; then stopped by SIGINT, at once");
  EXPECT_TRUE(end.Stop("dlaunch kill", 143, /*at_once=*/true));
  EXPECT_EQ(end.ReportOfStop("").headline(), "stopped by dlaunch kill, at once");
  EXPECT_EQ(end.ReportOfStop("").exit_code(), 143);
}

// Their report follows, and can't undo that they were killed.
TEST(JobEnd, AgentsAreKilledOnce) {
  JobEnd end;
  EXPECT_TRUE(end.Kill());
  EXPECT_FALSE(end.Kill());
  EXPECT_TRUE(end.Finish(end.ReportOf("killed", "killed")));
  EXPECT_TRUE(end.killed());
  EXPECT_FALSE(end.in_a_hurry());
  EXPECT_TRUE(end.Stop("SIGINT", 130, /*at_once=*/false));
  EXPECT_TRUE(end.in_a_hurry());
}

TEST(JobEnd, AMissingOutputMakesAGoodEndABadOne) {
  JobEnd end;
  end.Finish(ReportWith(0));
  end.MarkIncomplete("the last output of a is lost");
  end.MarkIncomplete("the last output of b is lost");
  EXPECT_EQ(end.report().headline(), "the last output of a is lost");
  EXPECT_EQ(end.report().exit_code(), kExitLauncher);
}

}  // namespace
}  // namespace cohort::launcher
