#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

#include <string>

#include "cohort/trainer/parallel/pipeline/schedule/checker.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::HasSubstr;

std::string Name(const ScheduleInfo& info, const ScheduleRequest& request) {
  return std::string(info.name) + " " + std::to_string(request.ranks) + " " + std::to_string(request.stages) + " " +
         std::to_string(request.micro_batches);
}

template <typename Each>
void ForManySizes(Each each) {
  for (const ScheduleInfo& info : Schedules()) {
    for (const int ranks : {1, 2, 3, 4, 7, 8}) {
      for (const int micro_batches : {1, 2, 3, 4, 5, 8, 13, 16, 24}) {
        const int most = std::min(info.traits.most_stages_per_rank, info.traits.least_stages_per_rank + 2);
        for (int laps = info.traits.least_stages_per_rank; laps <= most; ++laps) {
          each(info, ScheduleRequest{ranks, ranks * laps, micro_batches});
        }
      }
    }
  }
}

TEST(Schedules, EverySizeIsProvedAndHasTheFormulasActivations) {
  ForManySizes([](const ScheduleInfo& info, const ScheduleRequest& request) {
    const auto schedule = BuildSchedule(info.name, request);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const auto report = CheckSchedule(*schedule);
    ASSERT_TRUE(report.ok()) << Name(info, request) << ": " << report.status();
    const int parts = info.traits.splits_backward ? 3 : 2;
    EXPECT_EQ(report->passes, int64_t{parts} * request.stages * request.micro_batches) << Name(info, request);
    for (int rank = 0; rank < request.ranks; ++rank) {
      const auto formula = info.peak(request, rank);
      if (formula) {
        EXPECT_EQ(report->peak_activations[static_cast<size_t>(rank)], *formula) << Name(info, request) << " " << rank;
      }
    }
  });
}

// The same, whatever the lengths of forward and backward passes are, and whether sends wait.
TEST(Schedules, IdleShareIsExactlyTheFormulas) {
  ForManySizes([](const ScheduleInfo& info, const ScheduleRequest& request) {
    const auto formula = info.idle(request);
    if (!formula) return;
    const auto schedule = BuildSchedule(info.name, request);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const auto timing = SimulateSchedule(*schedule, Costs());
    ASSERT_TRUE(timing.ok()) << timing.status();
    const Share idle = timing->idle();
    EXPECT_EQ(idle.part * formula->whole, formula->part * idle.whole) << Name(info, request);
  });
}

TEST(Schedules, GPipeOneFOneBAndInterleavedHaveTheirFormulasWithAnyLengths) {
  for (const auto& [name, laps] : {std::pair("gpipe", 1), {"1f1b", 1}, {"interleaved", 2}, {"interleaved", 3}}) {
    for (const int64_t backward : {1, 2, 3, 5}) {
      for (const int ranks : {1, 2, 4, 6}) {
        for (const int groups : {1, 2, 3, 5}) {
          const int m = ranks * groups;
          const auto schedule = BuildSchedule(name, {ranks, ranks * laps, m});
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          Costs costs;
          costs.pass.backward = backward;
          const auto timing = SimulateSchedule(*schedule, costs);
          ASSERT_TRUE(timing.ok()) << timing.status();
          EXPECT_EQ(timing->total, (laps * m + ranks - 1) * (1 + backward)) << name << " " << ranks << " " << m;
          EXPECT_EQ(timing->idle().part * (laps * m + ranks - 1), timing->idle().whole * (ranks - 1)) << name;
        }
      }
    }
  }
}

TEST(Schedules, ZeroBubbleIsShorterThanOneFOneB) {
  const Costs costs;
  const auto total = [&](const char* name, int stages) {
    return SimulateSchedule(*BuildSchedule(name, {8, stages, 16}), costs)->total;
  };
  EXPECT_EQ(total("1f1b", 8), 3 * (16 + 7));
  EXPECT_EQ(total("zb_h1", 8), 3 * 16 + 7);
  EXPECT_EQ(total("zbv", 16), 6 * 16 + 7);  // stages of half the size
}

TEST(Schedules, SizesThatAScheduleCannotServeAreRefused) {
  const auto why = [](const char* name, ScheduleRequest request) {
    return std::string(BuildSchedule(name, request).status().message());
  };
  EXPECT_THAT(why("zigzag", {2, 2, 2}), HasSubstr("there are gpipe, 1f1b, interleaved, zb_h1, zbv"));
  EXPECT_THAT(why("1f1b", {2, 4, 2}), HasSubstr("schedule \"1f1b\" of 2 ranks needs 2 stages, not 4"));
  EXPECT_THAT(why("interleaved", {2, 2, 2}), HasSubstr("needs a multiple of 2 stages, at least 4"));
  EXPECT_THAT(why("interleaved", {3, 7, 2}), HasSubstr("needs a multiple of 3 stages"));
  EXPECT_THAT(why("zbv", {2, 6, 2}), HasSubstr("needs 4 stages, not 6"));
  EXPECT_THAT(why("gpipe", {0, 0, 1}), HasSubstr("ranks, not 0"));
  EXPECT_THAT(why("gpipe", {2, 2, 0}), HasSubstr("micro-batches, not 0"));
  EXPECT_THAT(why("interleaved", {128, 8192, 65536}), HasSubstr("is larger than"));
}

}  // namespace
}  // namespace cohort::trainer
