// Calibration believes its measurements as follows: figures follow from the times, and what can't be true changes
// nothing.
#include "cohort/comm/select/calibration.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

// Times from which these figures follow.
LevelTimes TimesOf(const ProbeFigures& figures) {
  const double round_trip = 2 * figures.alpha_us;
  return {.round_trip = round_trip,
          .burst = round_trip + (kCalibrationBurst - 1) * figures.message_us,
          .large = round_trip + kCalibrationBytes / 1e3 / figures.gigabytes_s};
}

ProbeFigures Scaled(const ProbeFigures& figures, double alpha, double message, double rate) {
  return {figures.alpha_us * alpha, figures.message_us * message, figures.gigabytes_s * rate};
}

TEST(CalibrationTest, FiguresScaleByTheDifferenceFromTheReference) {
  const Tuning base;
  Tuning tuning;
  EXPECT_EQ(Adopt("local", TimesOf(Scaled(kLocalReference, 3, 5, 0.25)), false, &tuning), "");
  EXPECT_NEAR(tuning.local.alpha_us / base.local.alpha_us, 3, 0.01);
  EXPECT_NEAR(tuning.local.message_us / base.local.message_us, 5, 0.01);
  EXPECT_NEAR(tuning.local.gigabytes_s / base.local.gigabytes_s, 0.25, 0.001);
  EXPECT_NEAR(tuning.local.copied_gigabytes_s / base.local.copied_gigabytes_s, 0.25, 0.001);
  EXPECT_NEAR(tuning.direct.uncached_gigabytes_s / base.direct.uncached_gigabytes_s, 0.25, 0.001);
  EXPECT_NEAR(tuning.window.large_gigabytes_s / base.window.large_gigabytes_s, 0.25, 0.001);
  EXPECT_NEAR(tuning.window.direct.gigabytes_s / base.window.direct.gigabytes_s, 0.25, 0.001);
  EXPECT_EQ(tuning.remote.gigabytes_s, base.remote.gigabytes_s);

  tuning = Tuning();
  EXPECT_EQ(Adopt("remote", TimesOf(Scaled(kRemoteReference, 0.2, 1, 10)), false, &tuning), "");
  EXPECT_NEAR(tuning.remote.alpha_us / base.remote.alpha_us, 0.2, 0.001);
  EXPECT_EQ(tuning.remote.message_us, base.remote.message_us);
  EXPECT_NEAR(tuning.remote.gigabytes_s / base.remote.gigabytes_s, 10, 0.01);
  EXPECT_EQ(tuning.direct.gigabytes_s, base.direct.gigabytes_s);

  AdoptReduction(kReductionReference * 4, &tuning);
  EXPECT_NEAR(tuning.reduce_gigabytes_s / base.reduce_gigabytes_s, 4, 0.01);
}

// A machine like the reference keeps what was fitted, or what its user gave.
TEST(CalibrationTest, AMachineLikeTheReferenceChangesNothing) {
  Tuning tuning;
  tuning.local.alpha_us = 0.7;
  const std::string before = tuning.ToString();
  EXPECT_EQ(Adopt("local", TimesOf(Scaled(kLocalReference, 1.9, 0.6, 1.5)), false, &tuning), "");
  EXPECT_EQ(Adopt("remote", TimesOf(Scaled(kRemoteReference, 0.6, 1.9, 0.7)), false, &tuning), "");
  AdoptReduction(kReductionReference * 0.6, &tuning);
  EXPECT_EQ(tuning.ToString(), before);
}

TEST(CalibrationTest, RanksThatTakeTurnsDoNotMeasureLatency) {
  Tuning tuning;
  EXPECT_EQ(Adopt("local", TimesOf(Scaled(kLocalReference, 6, 3, 1)), true, &tuning), "");
  EXPECT_EQ(tuning.local.alpha_us, Tuning().local.alpha_us);
  EXPECT_NEAR(tuning.local.message_us / Tuning().local.message_us, 3, 0.01);
}

// Ranks that wait milliseconds for a CPU: each figure by itself is kept where it can't be true.
TEST(CalibrationTest, ABusyMachineIsNotBelieved) {
  const Tuning before;
  Tuning tuning;
  std::string kept = Adopt("local", {.round_trip = 11988, .burst = 12000, .large = 11900}, false, &tuning);
  EXPECT_EQ(tuning.local.alpha_us, before.local.alpha_us);
  EXPECT_EQ(tuning.local.gigabytes_s, before.local.gigabytes_s);
  EXPECT_THAT(kept, HasSubstr("local.alpha_us=0.553 stays (5994 was measured)"));
  EXPECT_THAT(kept, HasSubstr("local.gigabytes_s=14.2 stays"));
  EXPECT_THAT(kept, Not(HasSubstr("message_us")));

  // Equal times, of which the rate would be infinite.
  tuning = before;
  kept = Adopt("local", {.round_trip = 2, .burst = 2, .large = 2}, false, &tuning);
  EXPECT_NE(tuning.local.alpha_us, before.local.alpha_us);
  EXPECT_EQ(tuning.local.message_us, before.local.message_us);
  EXPECT_EQ(tuning.local.gigabytes_s, before.local.gigabytes_s);
  EXPECT_THAT(kept, HasSubstr("local.message_us=0.08 stays"));
}

// Twelve milliseconds there and back are nonsense on one host, and fine between cities.
TEST(CalibrationTest, HostsThatAreFarApartAreMeasured) {
  Tuning tuning;
  EXPECT_EQ(Adopt("remote", {.round_trip = 12'000, .burst = 12'300, .large = 22'000}, false, &tuning), "");
  EXPECT_NEAR(tuning.remote.alpha_us / Tuning().remote.alpha_us, 6000 / kRemoteReference.alpha_us, 1);
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
  Adopt("local", TimesOf(Scaled(kLocalReference, 3.123456789, 1, 1.0 / 7)), false, &tuning);
  EXPECT_THAT(tuning.ToString(), HasSubstr("local.alpha_us=1.727;"));
  EXPECT_THAT(tuning.ToString(), HasSubstr("local.gigabytes_s=2.029;"));
}

}  // namespace
}  // namespace cohort::comm
