#include "cohort/launcher/trace/call_meetings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

constexpr uint32_t kBroadcast = 1;
constexpr uint32_t kReduce = 2;
constexpr uint32_t kAllReduce = 3;
constexpr uint32_t kBarrier = 9;
constexpr uint32_t kSend = 10;
constexpr uint32_t kRecv = 11;

TracedCall Call(uint32_t kind, uint32_t rank, uint64_t sequence, uint64_t start_ns = 0, uint64_t end_ns = 0,
                int size = 2, int peer = -1) {
  auto shape = std::make_shared<v1::CallShape>();
  shape->set_group(7);
  shape->set_epoch(1);
  shape->set_kind(kind);
  shape->set_bytes(8);
  shape->set_root(kind == kBroadcast || kind == kReduce ? 0 : -1);
  shape->set_group_rank(static_cast<int32_t>(rank));
  shape->set_group_size(size);
  shape->set_peer_rank(peer);
  return {.rank = rank, .shape = std::move(shape), .sequence = sequence, .start_ns = start_ns, .end_ns = end_ns};
}

class CallMeetingsTest : public ::testing::Test {
 protected:
  using Clock = CallMeetings::Clock;
  struct Met {
    size_t calls;
    bool complete;
    bool operator==(const Met&) const = default;
  };
  std::vector<Met> met_;
  CallMeetings meetings_{
      [this](const std::vector<TracedCall>& calls, bool complete) { met_.push_back({calls.size(), complete}); }};
  Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(CallMeetingsTest, CallsOfAllMembersMeet) {
  meetings_.Add(Call(kAllReduce, 0, 1), now_);
  meetings_.Add(Call(kAllReduce, 0, 2), now_);
  EXPECT_TRUE(met_.empty());
  meetings_.Add(Call(kAllReduce, 1, 1), now_);
  EXPECT_EQ(met_, (std::vector<Met>{{2, true}}));
  meetings_.Finish();
  EXPECT_EQ(met_, (std::vector<Met>{{2, true}, {1, false}}));
}

TEST_F(CallMeetingsTest, AMessageMeetsItsOtherSide) {
  meetings_.Add(Call(kSend, 0, 1, 0, 0, 4, 3), now_);
  meetings_.Add(Call(kRecv, 0, 1, 0, 0, 4, 3), now_);  // another direction
  meetings_.Add(Call(kRecv, 2, 1, 0, 0, 4, 0), now_);  // another pair
  EXPECT_TRUE(met_.empty());
  meetings_.Add(Call(kRecv, 3, 1, 0, 0, 4, 0), now_);
  EXPECT_EQ(met_, (std::vector<Met>{{2, true}}));
}

TEST_F(CallMeetingsTest, ACallOfOneIsComplete) {
  meetings_.Add(Call(kAllReduce, 0, 1, 0, 0, 1), now_);
  EXPECT_EQ(met_, (std::vector<Met>{{1, true}}));
}

TEST_F(CallMeetingsTest, MembersThatDoNotComeAreGivenUp) {
  meetings_.Add(Call(kAllReduce, 0, 1), now_);
  meetings_.Expire(now_ + CallMeetings::kComeWithin);
  EXPECT_TRUE(met_.empty());
  meetings_.Expire(now_ + CallMeetings::kComeWithin + std::chrono::milliseconds(1));
  EXPECT_EQ(met_, (std::vector<Met>{{1, false}}));
  // A later call makes another meeting, which the first one's time does not concern.
  meetings_.Add(Call(kAllReduce, 1, 1), now_ + std::chrono::seconds(3));
  meetings_.Expire(now_ + std::chrono::seconds(4));
  EXPECT_EQ(met_.size(), 1u);
}

TEST_F(CallMeetingsTest, WaitingCallsAreBounded) {
  for (uint64_t i = 0; i < CallMeetings::kMostWaiting + 10; ++i) meetings_.Add(Call(kAllReduce, 0, i + 1), now_);
  EXPECT_EQ(met_.size(), 10u);
}

std::vector<std::pair<size_t, size_t>> Waits(const std::vector<TracedCall>& calls) {
  std::vector<std::pair<size_t, size_t>> waits;
  for (const Waited& wait : FindWaits(calls, 10)) waits.emplace_back(wait.waiter, wait.cause);
  return waits;
}

using Pairs = std::vector<std::pair<size_t, size_t>>;

TEST(FindWaitsTest, AllWaitForTheLast) {
  EXPECT_EQ(Waits({Call(kAllReduce, 0, 1, 100, 900), Call(kAllReduce, 1, 1, 800, 900), Call(kAllReduce, 2, 1, 300, 950),
                   Call(kAllReduce, 3, 1, 795, 900)}),
            (Pairs{{0, 1}, {2, 1}}));
}

TEST(FindWaitsTest, OthersWaitForTheRootOfABroadcast) {
  EXPECT_EQ(
      Waits({Call(kBroadcast, 0, 1, 500, 510), Call(kBroadcast, 1, 1, 100, 600), Call(kBroadcast, 2, 1, 900, 950)}),
      (Pairs{{1, 0}}));
}

TEST(FindWaitsTest, TheRootOfAReduceWaitsForTheLast) {
  EXPECT_EQ(Waits({Call(kReduce, 0, 1, 100, 600), Call(kReduce, 1, 1, 200, 210), Call(kReduce, 2, 1, 500, 510)}),
            (Pairs{{0, 2}}));
}

TEST(FindWaitsTest, TheEarlierSideOfAMessageWaits) {
  EXPECT_EQ(Waits({Call(kSend, 0, 1, 500, 510), Call(kRecv, 1, 1, 100, 600)}), (Pairs{{1, 0}}));
  EXPECT_EQ(Waits({Call(kSend, 0, 1, 100, 110), Call(kRecv, 1, 1, 500, 600)}), Pairs());  // it did not wait
}

TEST(FindWaitsTest, ACallWithoutALengthHasWaitedAllTheSame) {
  EXPECT_EQ(Waits({Call(kAllReduce, 0, 1, 100, 100), Call(kAllReduce, 1, 1, 800, 800)}), (Pairs{{0, 1}}));
  EXPECT_EQ(Waits({Call(kSend, 0, 1, 100, 100), Call(kRecv, 1, 1, 500, 500)}), Pairs());
}

TEST(FindWaitsTest, OneAloneWaitsForNobody) { EXPECT_EQ(Waits({Call(kBarrier, 0, 1, 1, 2, 1)}), Pairs()); }

TEST(MeetsAllTest, CallsWithoutARootMeetAll) {
  EXPECT_TRUE(MeetsAll(*Call(kBarrier, 0, 1).shape));
  EXPECT_TRUE(MeetsAll(*Call(kAllReduce, 0, 1).shape));
  EXPECT_FALSE(MeetsAll(*Call(kBroadcast, 0, 1).shape));
  EXPECT_FALSE(MeetsAll(*Call(kSend, 0, 1).shape));
  v1::CallShape empty = *Call(kAllReduce, 0, 1).shape;
  empty.set_bytes(0);
  EXPECT_FALSE(MeetsAll(empty));
}

}  // namespace
}  // namespace cohort::launcher
