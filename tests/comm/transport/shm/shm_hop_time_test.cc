// How long a reader waits before it looks for a line that is being written.
#include <gtest/gtest.h>

#include "cohort/comm/transport/shm/hop_time.h"

namespace cohort::comm::shm {
namespace {

constexpr LookCosts kCosts{.clock_ns = 20, .pause_ns = 10};

int PausesAfter(uint64_t first_ns, uint64_t second_ns) {
  HopTime hop(kCosts);
  hop.Add(first_ns);
  hop.Add(second_ns);
  return hop.pauses();
}

TEST(HopTimeTest, WaitsOnlyWhereLinesTravelFar) {
  EXPECT_EQ(HopTime().pauses(), 0);
  EXPECT_EQ(PausesAfter(60, 60), 0);
  EXPECT_EQ(PausesAfter(130, 130), 1);
  EXPECT_EQ(PausesAfter(190, 190), 2);
  EXPECT_EQ(PausesAfter(2'000'000, 2'000'000), 3);
}

TEST(HopTimeTest, ALookThatWasInterruptedDoesNotCount) {
  EXPECT_EQ(PausesAfter(60, 100'000), 0);
  EXPECT_EQ(PausesAfter(100'000, 60), 0);
}

TEST(HopTimeTest, FollowsRanksThatMove) {
  HopTime hop(kCosts);
  for (int i = 0; i < 3; ++i) hop.Add(190);
  EXPECT_EQ(hop.pauses(), 2);
  hop.Add(50);
  EXPECT_EQ(hop.pauses(), 0);
  hop.Add(190);
  hop.Add(190);
  EXPECT_EQ(hop.pauses(), 2);
}

TEST(HopTimeTest, SlowPausesAreFewer) {
  HopTime hop({.clock_ns = 20, .pause_ns = 20});
  for (int i = 0; i < 2; ++i) hop.Add(190);
  EXPECT_EQ(hop.pauses(), 1);
}

TEST(HopTimeTest, MeasuresWhatALookCosts) {
  const LookCosts& costs = LookCosts::OfThisMachine();
  EXPECT_GE(costs.clock_ns, 1u);
  EXPECT_GE(costs.pause_ns, 1u);
  EXPECT_EQ(&costs, &LookCosts::OfThisMachine());
}

TEST(HopTimeTest, TimesOneMessageInSixteen) {
  int timed = 0;
  for (uint64_t message = 0; message < 160; ++message) timed += HopTime::Times(message) ? 1 : 0;
  EXPECT_EQ(timed, 10);
}

}  // namespace
}  // namespace cohort::comm::shm
