#include "cohort/trainer/parallel/pipeline/schedule/picture.h"

#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

std::string Drawn(const char* name, ScheduleRequest request) {
  const Schedule schedule = *BuildSchedule(name, request);
  return DrawSchedule(schedule, *SimulateSchedule(schedule, Costs()));
}

TEST(Picture, DrawsRankByTime) {
  EXPECT_EQ(Drawn("1f1b", {3, 3, 3}),
            "rank 0  F0 F1 F2  .  .  .  . B0  =  . B1  =  . B2  =\n"
            "rank 1   . F0 F1  .  . B0  = F2 B1  =  . B2  =  .  .\n"
            "rank 2   .  . F0 B0  = F1 B1  = F2 B2  =  .  .  .  .\n");
}

TEST(Picture, NamesTheStageWhereARankHasSeveral) {
  EXPECT_EQ(Drawn("zbv", {1, 2, 1}), "rank 0  0F0 1F0 1I0 1W0 0I0 0W0\n");
}

}  // namespace
}  // namespace cohort::trainer
