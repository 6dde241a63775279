#include "cohort/launcher/agent/life/rank_life.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cohort::launcher {
namespace {

TEST(RankLife, HasNoOtherTransitionsThanThese) {
  using enum RankLife;
  const std::set<std::pair<RankLife, RankLife>> legal = {
      {kNone, kStarting},    {kNone, kRunning},    {kNone, kGone},        {kStarting, kRunning}, {kStarting, kReported},
      {kStarting, kReaped},  {kRunning, kStaying}, {kRunning, kReported}, {kRunning, kReaped},   {kRunning, kGone},
      {kStaying, kReported}, {kStaying, kReaped},  {kStaying, kGone},     {kReported, kGone},    {kReaped, kGone}};
  const RankLife all[] = {kNone, kStarting, kRunning, kStaying, kReported, kReaped, kGone};
  for (const RankLife from : all) {
    for (const RankLife to : all) EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}));
  }
}

TEST(RankLife, AProcessIsThereFromTheForkUntilItIsReaped) {
  using enum RankLife;
  for (const RankLife life : {kStarting, kRunning, kStaying, kReported}) EXPECT_TRUE(HasProcess(life));
  for (const RankLife life : {kNone, kReaped, kGone}) EXPECT_FALSE(HasProcess(life));
}

}  // namespace
}  // namespace cohort::launcher
