#include "tools/schedule/predicted_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "tests/support/read_trace.h"

namespace cohort::tools {
namespace {

using launcher::ReadSlice;
using launcher::ReadTrace;
using ::testing::IsEmpty;

TEST(PredictedScheduleTest, EveryPassIsASliceOfItsTime) {
  std::string folder = (std::filesystem::temp_directory_path() / "predicted_schedule_test.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  for (const char* const name : {"1f1b", "zb_h1"}) {
    for (const bool sends_wait : {false, true}) {
      SCOPED_TRACE(name);
      const std::string path = folder + "/" + name + (sends_wait ? "-waits" : "");
      const auto schedule = trainer::BuildSchedule(name, {4, 4, 8});
      ASSERT_TRUE(schedule.ok()) << schedule.status();
      const auto timing =
          trainer::SimulateSchedule(*schedule, {.pass = {}, .by_stage = {}, .message = 1, .sends_wait = sends_wait});
      ASSERT_TRUE(timing.ok()) << timing.status();
      const auto place = TraceSchedule(path, *schedule, *timing);
      ASSERT_TRUE(place.ok()) << place.status();
      EXPECT_EQ(*place, "");

      const ReadTrace trace = ReadTrace::Of(path);
      EXPECT_THAT(trace.problems, IsEmpty());
      std::map<std::string, uint64_t> busy;
      std::multiset<uint64_t> begun, ended;
      uint64_t first = UINT64_MAX, last = 0;
      for (const ReadSlice& slice : trace.slices) {
        EXPECT_EQ(slice.node, "pipeline");
        begun.insert(slice.causes.begin(), slice.causes.end());
        ended.insert(slice.waited.begin(), slice.waited.end());
        if (slice.arguments.at("pass") == "message") continue;
        busy[slice.track] += slice.end_ns - slice.start_ns;
        first = std::min(first, slice.start_ns);
        last = std::max(last, slice.end_ns);
      }
      EXPECT_EQ(last - first, static_cast<uint64_t>(timing->total) * 1000);
      for (size_t rank = 0; rank < 4; ++rank) {
        const std::string track = "rank " + std::to_string(rank) + ", predicted: " + name;
        EXPECT_EQ(busy[track], static_cast<uint64_t>(timing->busy[rank]) * 1000) << track;
      }
      EXPECT_EQ(begun, ended);
      EXPECT_FALSE(begun.empty());
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cohort::tools
