#include "cohort/launcher/verdict/reason.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/verdict/milliseconds.h"

namespace cohort::launcher {
namespace {

RankState State(uint64_t begin_ms, Activity activity, uint64_t computed_ms, uint64_t queued_ms = 0,
                uint64_t throttled_ms = 0, const std::string& object = "", const std::string& place = "") {
  auto shape = std::make_shared<v1::StateShape>();
  shape->set_activity(static_cast<uint32_t>(activity));
  shape->set_object(object);
  shape->set_place(place);
  return {.rank = 3,
          .node = 0,
          .shape = shape,
          .begin_ns = begin_ms * kMs,
          .end_ns = (begin_ms + 20) * kMs,
          .computed_ns = computed_ms * kMs,
          .queued_ns = queued_ms * kMs,
          .throttled_ns = throttled_ms * kMs};
}

Reason ReasonOf(const std::vector<RankState>& states, const Doings& usual = {}) {
  const RankDoings doings(states);
  return FindReason(doings.In(3, {{0, 100 * kMs}}), usual);
}

TEST(ReasonTest, TheTimeThatWasNotComputedBelongsToTheStatesThatWereSeen) {
  std::vector<RankState> states;
  for (uint64_t i = 0; i < 5; ++i) {
    const bool sleeps = i % 2 == 0;
    states.push_back(State(20 * i, sleeps ? Activity::kReads : Activity::kComputes, 4, 0, 0,
                           sleeps ? "read of /data/x" : "", "/x/train.py:3 in load"));
  }
  const Reason reason = ReasonOf(states);
  EXPECT_EQ(reason.activity, Activity::kReads);
  EXPECT_EQ(reason.object, "read of /data/x");
  EXPECT_EQ(reason.place, "/x/train.py:3 in load");
  EXPECT_NEAR(reason.ns, 80e6, 1e3);
  EXPECT_NEAR(reason.sure, 0.8, 0.01);
}

TEST(ReasonTest, TimeWithoutACpuAndThrottledTimeAreCountedByTheKernel) {
  std::vector<RankState> queued, throttled;
  for (uint64_t i = 0; i < 5; ++i) {
    queued.push_back(State(20 * i, Activity::kComputes, 4, 16));
    throttled.push_back(State(20 * i, Activity::kComputes, 4, 0, 16));
  }
  EXPECT_EQ(ReasonOf(queued).activity, Activity::kQueued);
  EXPECT_EQ(ReasonOf(throttled).activity, Activity::kThrottled);
}

TEST(ReasonTest, TheUsualIsNoReason) {
  std::vector<RankState> states;
  for (uint64_t i = 0; i < 3; ++i) states.push_back(State(20 * i, Activity::kComputes, 20));
  for (uint64_t i = 3; i < 5; ++i) states.push_back(State(20 * i, Activity::kLocks, 0));
  EXPECT_EQ(ReasonOf(states).activity, Activity::kComputes);
  Doings usual;
  usual.ns[static_cast<size_t>(Activity::kComputes)] = 58e6;
  EXPECT_EQ(ReasonOf(states, usual).activity, Activity::kLocks);
}

TEST(ReasonTest, ATimeThatWasHardlySeenHasNone) {
  EXPECT_EQ(ReasonOf({State(0, Activity::kReads, 0)}).activity, Activity::kUnknown);
  EXPECT_EQ(ReasonOf({}).activity, Activity::kUnknown);
}

TEST(ReasonTest, StatesOfOtherRanksAndTimesDoNotCount) {
  std::vector<RankState> states = {State(40, Activity::kReads, 0), State(200, Activity::kLocks, 0)};
  states.push_back(states[0]);
  states.back().rank = 4;
  const RankDoings doings(states);
  const Doings found = doings.In(3, {{45 * kMs, 55 * kMs}});
  EXPECT_NEAR(found.of(Activity::kReads), 10e6, 1);
  EXPECT_NEAR(found.of(Activity::kLocks), 0, 1);
  EXPECT_NEAR(found.seen_ns, 10e6, 1);
}

}  // namespace
}  // namespace cohort::launcher
