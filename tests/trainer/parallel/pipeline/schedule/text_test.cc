#include "cohort/trainer/parallel/pipeline/schedule/text.h"

#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleText, APrintedScheduleIsReadAsTheSame) {
  for (const ScheduleInfo& info : Schedules()) {
    const Schedule schedule = *BuildSchedule(info.name, {3, 3 * info.traits.least_stages_per_rank, 6});
    const auto read = ParseSchedule(ToText(schedule));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->ranks, schedule.ranks);
    EXPECT_EQ(read->stages, schedule.stages);
    EXPECT_EQ(read->micro_batches, schedule.micro_batches);
    EXPECT_EQ(read->rank_of_stage, schedule.rank_of_stage);
    EXPECT_EQ(read->by_rank, schedule.by_rank) << info.name;
  }
}

TEST(ScheduleText, ScheduleTextsHavePyTorchsForm) {
  EXPECT_EQ(ToText(*BuildSchedule("gpipe", {2, 2, 1})),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1RECV_F0,1UNSHARD,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
}

TEST(ScheduleText, PassesAloneAreCompleted) {
  // Idle cells, a comment, and spaces, as tables have them.
  const auto read = ParseSchedule("# 1F1B by hand\n0F0, 0F1,,0B0, 0B1\r\n , 1F0,1B0,1F1,1B1\n\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(CheckSchedule(*read).ok()) << CheckSchedule(*read).status();
  EXPECT_EQ(read->by_rank, BuildSchedule("1f1b", {2, 2, 2})->by_rank);
}

TEST(ScheduleText, TextsThatCannotBeReadAreNamed) {
  const auto why = [](const std::string& text) { return std::string(ParseSchedule(text).status().message()); };
  EXPECT_THAT(why(""), HasSubstr("no line with actions"));
  EXPECT_THAT(why("0F0,0B0\n1F0,1Q0"), HasSubstr("rank 1, cell 1: \"1Q0\" is no action"));
  EXPECT_THAT(why("0F"), HasSubstr("\"0F\" is no action"));
  EXPECT_THAT(why("F0"), HasSubstr("\"F0\" is no action"));
  EXPECT_THAT(why("0F0x"), HasSubstr("\"0F0x\" is no action"));
  EXPECT_THAT(why("0UNSHARD1"), HasSubstr("\"0UNSHARD1\" is no action"));
  EXPECT_THAT(why("-1F0"), HasSubstr("\"-1F0\" is no action"));
  EXPECT_THAT(why("99999F0"), HasSubstr("\"99999F0\" is no action"));
  EXPECT_THAT(why("0F99999999999"), HasSubstr("is no action"));
  EXPECT_THAT(why("8191F65535"), HasSubstr("is larger than"));
  EXPECT_THAT(why("0F0,0B0\n0F1,0B1"), HasSubstr("rank 1, 0F1: rank 0 has this stage"));
  EXPECT_THAT(why("0F0,0B0\n2F0,2B0"), HasSubstr("no rank computes stage 1"));
}

}  // namespace
}  // namespace cohort::trainer
