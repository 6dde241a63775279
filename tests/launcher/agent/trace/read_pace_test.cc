#include "cohort/launcher/agent/trace/read_pace.h"

#include <gtest/gtest.h>

#include <chrono>

#include "cohort/runtime/segment/black_box.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

TEST(ReadPace, ReadsQuietRingsMoreRarely) {
  ReadPace pace(2);
  EXPECT_EQ(pace.Next(0, 0), milliseconds(6));
  EXPECT_EQ(pace.Next(10, 10), milliseconds(12));
  EXPECT_EQ(pace.Next(10, 10), milliseconds(24));
  EXPECT_EQ(pace.Next(10, 10), ReadPace::kMost);
}

TEST(ReadPace, ReadsAtOnceAgainWhenARingHasFilledAQuarter) {
  ReadPace pace(64);
  for (int i = 0; i < 4; ++i) pace.Next(0, 0);
  EXPECT_EQ(pace.Next(128, 128), ReadPace::kLeast);
  EXPECT_EQ(pace.Next(64, 64), ReadPace::kLeast);  // neither little nor much: as before
}

TEST(ReadPace, KeepsTheLeastIntervalForSomeSecondsAfterAFullRing) {
  ReadPace pace(128);
  ReadPace::Duration time = pace.Next(runtime::kBlackBoxRecords, runtime::kBlackBoxRecords);
  while (time < ReadPace::kHold) {
    const ReadPace::Duration next = pace.Next(0, 0);
    ASSERT_EQ(next, ReadPace::kLeast);
    time += next;
  }
  EXPECT_GT(pace.Next(0, 0), ReadPace::kLeast);
}

TEST(ReadPace, NoPauseIsLongerThanItsBound) {
  ReadPace pace(1);
  EXPECT_EQ(pace.Next(1'000'000, runtime::kBlackBoxRecords), ReadPace::kLongestPause);
}

TEST(ReadPace, RestartsAtTheLeastInterval) {
  ReadPace pace(64);
  for (int i = 0; i < 4; ++i) pace.Next(0, 0);
  pace.Restart();
  EXPECT_EQ(pace.Next(64, 64), ReadPace::kLeast);
}

TEST(ReadPace, AFloodIsReadByTheBudgetOfTheCpus) {
  for (const int cpus : {1, 2, 16}) {
    ReadPace pace(cpus);
    ReadPace::Duration time{};
    size_t read = 0;
    while (time < std::chrono::seconds(10)) {
      const size_t news = 4 * runtime::kBlackBoxRecords;
      time += pace.Next(news, runtime::kBlackBoxRecords);
      read += news;
    }
    const double rate = static_cast<double>(read) / std::chrono::duration<double>(time).count();
    EXPECT_NEAR(rate, static_cast<double>(cpus) * 6500, 0.01 * cpus * 6500) << cpus;
  }
}

TEST(ReadPace, ANodeOfManyCpusReadsAtTheLeastInterval) {
  ReadPace pace(128);
  EXPECT_EQ(pace.Next(2048, runtime::kBlackBoxRecords), ReadPace::kLeast);
}

}  // namespace
}  // namespace cohort::launcher
