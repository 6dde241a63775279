// What calibration believes: figures follow from the times, and what can't be true changes nothing.
#include "comm/calibration.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CalibrationTest, FiguresFollowFromTheTimes) {
  LevelTuning level;
  const std::string kept = Adopt("local", {.round_trip = 1.0, .burst = 4.0, .large = 105.8576}, &level);
  EXPECT_EQ(kept, "");
  EXPECT_DOUBLE_EQ(level.alpha_us, 0.5);
  EXPECT_DOUBLE_EQ(level.message_us, 0.2);
  EXPECT_DOUBLE_EQ(level.gigabytes_s, 10.0);
}

// Ranks that wait milliseconds for a CPU: each figure by itself is kept where it can't be true.
TEST(CalibrationTest, ABusyMachineIsNotBelieved) {
  const LevelTuning before = {.alpha_us = 0.5, .message_us = 0.05, .gigabytes_s = 20};
  LevelTuning level = before;
  std::string kept = Adopt("local", {.round_trip = 11988, .burst = 12000, .large = 11900}, &level);
  EXPECT_EQ(level.alpha_us, before.alpha_us);
  EXPECT_EQ(level.gigabytes_s, before.gigabytes_s);
  EXPECT_THAT(kept, HasSubstr("local.alpha_us=0.5 stays (5994 was measured)"));
  EXPECT_THAT(kept, HasSubstr("local.gigabytes_s=20 stays"));
  EXPECT_THAT(kept, Not(HasSubstr("message_us")));

  // Equal times, of which the rate would be infinite.
  level = before;
  kept = Adopt("local", {.round_trip = 2, .burst = 2, .large = 2}, &level);
  EXPECT_EQ(level.alpha_us, 1.0);
  EXPECT_EQ(level.message_us, before.message_us);
  EXPECT_EQ(level.gigabytes_s, before.gigabytes_s);
  EXPECT_THAT(kept, HasSubstr("local.message_us=0.05 stays"));
}

// Twelve milliseconds there and back are nonsense on one host, and fine between cities.
TEST(CalibrationTest, HostsMayBeFarApart) {
  LevelTuning level;
  EXPECT_EQ(Adopt("remote", {.round_trip = 12'000, .burst = 12'300, .large = 22'000}, &level), "");
  EXPECT_DOUBLE_EQ(level.alpha_us, 6000);
}

TEST(CalibrationTest, FewSlowSamplesDontCount) {
  std::vector<double> samples(20, 6000.0);
  for (int i = 0; i < 3; ++i) samples[static_cast<size_t>(5 * i)] = 1.0;
  EXPECT_EQ(LowQuantile(samples), 1.0);
  std::vector<double> one = {7.0};
  EXPECT_EQ(LowQuantile(one), 7.0);
}

// Figures are printed as people write them, not with seventeen digits.
TEST(CalibrationTest, FiguresAreShort) {
  Tuning tuning;
  Adopt("local", {.round_trip = 0.47200000000000004, .burst = 2.0 / 3.0, .large = 1e3 / 7}, &tuning.local);
  EXPECT_THAT(tuning.ToString(), HasSubstr("local.alpha_us=0.236;"));
  EXPECT_THAT(tuning.ToString(), HasSubstr("local.gigabytes_s=7.364;"));
}

}  // namespace
}  // namespace cohort::comm
