#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Simulator, TimesEachActionOfAScheduleByHand) {
  // One forward pass of 1 on rank 0, a message of 3, forward 1 and backward 2 on rank 1, back 3, backward 2.
  const Schedule schedule = *ParseSchedule("0F0,0B0\n1F0,1B0\n");
  Costs costs;
  costs.message = 3;
  const auto timing = SimulateSchedule(schedule, costs);
  ASSERT_TRUE(timing.ok()) << timing.status();
  EXPECT_EQ(timing->total, 1 + 3 + 1 + 2 + 3 + 2);
  EXPECT_THAT(timing->busy, ElementsAre(3, 3));
  EXPECT_EQ(timing->idle().part, 24 - 6);
  EXPECT_EQ(timing->idle().whole, 24);
  costs.sends_wait = true;
  EXPECT_EQ(SimulateSchedule(schedule, costs)->total, 12);
}

TEST(Simulator, StagesMayHaveCostsOfTheirOwn) {
  const Schedule schedule = *BuildSchedule("gpipe", {2, 2, 2});
  Costs costs;
  costs.by_stage = {{.forward = 1, .backward = 1}, {.forward = 5, .backward = 7}};
  EXPECT_EQ(SimulateSchedule(schedule, costs)->total, 1 + 2 * 5 + 2 * 7 + 1);
  costs.by_stage.pop_back();
  EXPECT_THAT(std::string(SimulateSchedule(schedule, costs).status().message()), HasSubstr("given for 1 stages"));
}

TEST(Simulator, ASendThatWaitsTakesTheTimeOfItsRank) {
  // Rank 1 is busy with its first micro-batch for 10 units when rank 0 has made the second.
  const Schedule schedule = *BuildSchedule("1f1b", {2, 2, 3});
  Costs costs;
  costs.by_stage = {{.forward = 1, .backward = 1}, {.forward = 10, .backward = 10}};
  const int64_t beside = SimulateSchedule(schedule, costs)->by_rank[0].back().end;
  costs.sends_wait = true;
  const auto waiting = SimulateSchedule(schedule, costs);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_EQ(beside, 1 + 3 * 20 + 1);
  EXPECT_GE(waiting->total, beside);
}

TEST(Simulator, ARankThatWaitsForEverIsNamedWithItsAction) {
  const auto schedule = ParseSchedule("0F0,0B1,0F1,0B0\n1F0,1B0,1F1,1B1\n");
  EXPECT_THAT(std::string(schedule.status().message()),
              HasSubstr("rank 0 stands still at 0B1 (action 1), waiting for its own earlier pass"));
  const auto other = ParseSchedule("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_THAT(
      std::string(other.status().message()),
      HasSubstr("rank 0 stands still at 0B0 (action 1), waiting for the backward pass of stage 1 on rank 1; rank "
                "1 stands still at 1F1 (action 1), waiting for the forward pass of stage 0 on rank 0"));
}

}  // namespace
}  // namespace cohort::trainer
