#include "cohort/launcher/trace/node_clocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>

namespace cohort::launcher {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Two nodes whose clocks differ, and that meet every millisecond.
class NodeClocksTest : public ::testing::Test {
 protected:
  // One call: each comes up to 200 us late, and leaves up to 30 us after the last one has come.
  void Meet(uint64_t now, int64_t difference) {
    const uint64_t one = now + random_() % 200'000;
    const uint64_t other = now + random_() % 200'000;
    const uint64_t met = std::max(one, other);
    clocks_.OnCall({{.node = 0, .last_begun_ns = one, .first_ended_ns = met + random_() % 30'000},
                    {.node = 1,
                     .last_begun_ns = other + static_cast<uint64_t>(difference),
                     .first_ended_ns = met + random_() % 30'000 + static_cast<uint64_t>(difference)}});
  }
  int64_t Error(uint64_t now, int64_t difference) const {
    return std::abs(static_cast<int64_t>(clocks_.Aligned(1, now + static_cast<uint64_t>(difference)) - now));
  }

  std::mt19937 random_{1};
  NodeClocks clocks_{2};
};

TEST_F(NodeClocksTest, CallsAlignClocks) {
  constexpr int64_t kDifference = 123'456'789'012;
  for (uint64_t i = 0; i < 500; ++i) Meet(kSecond * 1000 + i * 1'000'000, kDifference);
  clocks_.Update();
  ASSERT_TRUE(clocks_.ErrorOf(1).has_value());
  EXPECT_LE(Error(kSecond * 1001, kDifference), static_cast<int64_t>(*clocks_.ErrorOf(1)));
  EXPECT_LE(*clocks_.ErrorOf(1), 50'000u);
  EXPECT_EQ(clocks_.jumps(), 0u);
  EXPECT_EQ(clocks_.Unbound(), 0u);
}

TEST_F(NodeClocksTest, ADriftIsFollowed) {
  uint64_t now = kSecond * 1000;
  int64_t difference = -5'000'000;
  for (int i = 0; i < 20'000; ++i) {
    now += 1'000'000;
    difference += 100;  // 100 parts of a million
    Meet(now, difference);
    clocks_.Update();
    ASSERT_LE(Error(now, difference), 300'000) << i;
  }
}

TEST_F(NodeClocksTest, AJumpIsSurvived) {
  uint64_t now = kSecond * 1000;
  for (int i = 0; i < 100; ++i) Meet(now += 1'000'000, 1'000'000);
  clocks_.Update();
  for (int i = 0; i < 100; ++i) Meet(now += 1'000'000, -3'000'000'000);
  clocks_.Update();
  EXPECT_EQ(clocks_.jumps(), 1u);
  EXPECT_LE(Error(now, -3'000'000'000), static_cast<int64_t>(*clocks_.ErrorOf(1)));
}

TEST_F(NodeClocksTest, DifferencesStayWhileTheBoundsAllowIt) {
  uint64_t now = kSecond * 1000;
  for (int i = 0; i < 500; ++i) Meet(now += 1'000'000, 1'000'000);
  clocks_.Update();
  const uint64_t before = clocks_.Aligned(1, now);
  for (int i = 0; i < 200; ++i) Meet(now += 1'000'000, 1'000'000);
  clocks_.Update();
  EXPECT_EQ(clocks_.Aligned(1, now - 200'000'000) + 200'000'000, before + 200'000'000);
}

TEST_F(NodeClocksTest, AnUnknownEndBoundsNothing) {
  clocks_.OnCall({{.node = 0, .last_begun_ns = kSecond, .first_ended_ns = kSecond + 20'000},
                  {.node = 1, .last_begun_ns = kSecond, .first_ended_ns = std::nullopt}});
  clocks_.Update();
  EXPECT_EQ(clocks_.ErrorOf(1), std::nullopt);
  clocks_.OnCall({{.node = 0, .last_begun_ns = kSecond, .first_ended_ns = std::nullopt},
                  {.node = 1, .last_begun_ns = kSecond, .first_ended_ns = kSecond + 20'000}});
  clocks_.Update();
  EXPECT_EQ(clocks_.ErrorOf(1), 25'000u);  // with that of the records
}

TEST_F(NodeClocksTest, WallClocksServeWhereNoCallDoes) {
  clocks_.OnWallClock(0, 1000, 50'000);
  clocks_.OnWallClock(1, 7000, 50'500);
  clocks_.Update();
  EXPECT_EQ(clocks_.Aligned(1, 7000), 1500u);
  EXPECT_EQ(clocks_.ErrorOf(1), std::nullopt);
  EXPECT_EQ(clocks_.Unbound(), 1u);
  EXPECT_EQ(clocks_.AtWallClock(50'100), 1100u);
}

TEST_F(NodeClocksTest, ErrorsOfAChainAddUp) {
  NodeClocks clocks(3);
  const auto meet = [&clocks](size_t one, size_t other, uint64_t at) {
    clocks.OnCall({{.node = one, .last_begun_ns = at, .first_ended_ns = at + 20'000},
                   {.node = other, .last_begun_ns = at, .first_ended_ns = at + 20'000}});
  };
  meet(0, 1, kSecond);
  meet(1, 2, kSecond);
  clocks.Update();
  EXPECT_EQ(*clocks.ErrorOf(2), *clocks.ErrorOf(1) * 2);
  EXPECT_EQ(clocks.LargestError(), *clocks.ErrorOf(2));
  EXPECT_EQ(clocks.Aligned(2, kSecond), kSecond);
}

}  // namespace
}  // namespace cohort::launcher
