// The two ends of a stream as its ways see them: which messages are asked about and timed, and what is told.
#include <gtest/gtest.h>

#include <cstddef>
#include <optional>

#include "cohort/comm/transport/shm/way/stream_way.h"

namespace cohort::comm::shm {
namespace {

constexpr size_t kLong = 64 << 10;

// A question whose receiver has told nothing yet and may read.
std::optional<WayQuestion> Ask() {
  return WayQuestion{.reader = 1, .may_read = true, .ring_bytes = {2 << 20, 1 << 20}};
}

// Takes a message of one part from one end to the other. Returns whether the reader timed it.
bool Move(OutgoingWay& out, IncomingWay& in, size_t bytes) {
  const Way way = out.Next(bytes, true, Ask);
  if (way != Way::kRead) {
    out.Begin(false);
    out.EndPart(out.BeginPart(), bytes);
    out.End();
  }
  in.Begin(way, bytes);
  in.EndPart(in.BeginPart());
  return in.End(0);
}

TEST(StreamWayTest, AsksNobodyAboutMessagesThatAreAlwaysCopied) {
  RankWays ways(0, 2, std::nullopt);
  OutgoingWay out(ways);
  int asked = 0;
  const auto ask = [&asked] {
    ++asked;
    return Ask();
  };
  EXPECT_EQ(out.Next(kPastCacheFrom - 1, true, ask), Way::kCopied);
  EXPECT_EQ(asked, 0);
  for (uint32_t i = 0; i < 3 * kShortRun; ++i) out.Next(kPastCacheFrom, true, ask);
  EXPECT_EQ(asked, 3) << "once a run of short ones";
  out.Next(kLong, true, ask);
  EXPECT_EQ(asked, 4);
}

TEST(StreamWayTest, CopiesWhileThereIsNoReaderToAsk) {
  RankWays ways(0, 2, true);
  OutgoingWay out(ways);
  EXPECT_EQ(out.Next(kLong, true, [] { return std::optional<WayQuestion>(); }), Way::kCopied);
  EXPECT_EQ(out.Next(kLong, true, Ask), Way::kRead);
}

TEST(StreamWayTest, TakesTheWayThatWasAskedFor) {
  for (const bool reads : {false, true}) {
    RankWays ways(0, 2, reads);
    OutgoingWay out(ways);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(out.Next(kLong, true, Ask), reads ? Way::kRead : Way::kCopied);
  }
}

TEST(StreamWayTest, TimesEveryLongMessageAndOneShortOneInARun) {
  RankWays sender(0, 2, false), receiver(1, 2, false);
  OutgoingWay out(sender);
  IncomingWay in(&receiver, 0, nullptr);
  int timed = 0;
  for (int i = 0; i < 10; ++i) timed += Move(out, in, kLong) ? 1 : 0;
  EXPECT_EQ(timed, 10);
  timed = 0;
  for (uint32_t i = 0; i < 4 * kShortRun; ++i) timed += Move(out, in, 2048) ? 1 : 0;
  EXPECT_EQ(timed, 4);
  timed = 0;
  for (int i = 0; i < 32; ++i) timed += Move(out, in, 8 << 10) ? 1 : 0;
  EXPECT_EQ(timed, 3 + 8) << "three at first, then one in four";
}

TEST(StreamWayTest, TimesNothingWithoutPrivateMemory) {
  IncomingWay in(nullptr, 0, nullptr);
  in.Begin(Way::kCopied, kLong);
  in.EndPart(in.BeginPart());
  EXPECT_FALSE(in.End(0));
}

TEST(StreamWayTest, TellsATimeOnceAndNotAgainWhileItIsTheSame) {
  RankWays sender(0, 2, false), receiver(1, 2, false);
  OutgoingWay out(sender);
  IncomingWay in(&receiver, 0, nullptr);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Move(out, in, kLong));
  EXPECT_FALSE(in.ShouldTell({})) << "two are not enough";
  ASSERT_TRUE(Move(out, in, kLong));
  ASSERT_TRUE(in.ShouldTell({}));
  const ToldTimes told = in.Told(true);
  EXPECT_TRUE(told.can_read());
  EXPECT_GT(told.Time(Way::kCopied, WaySizeOf(kLong)), 0u);
  EXPECT_FALSE(in.ShouldTell(told));
}

TEST(StreamWayTest, KnowsWhenBothSend) {
  RankWays ways(1, 2, std::nullopt);
  OutgoingWay out(ways);
  IncomingWay in(&ways, 0, &out.arrivals());
  EXPECT_FALSE((out.Next(kLong, true, Ask), out.meets()));
  out.Begin(true);
  in.Begin(Way::kPastCache, kLong);  // arrives while the other is copied in
  out.End();
  EXPECT_EQ(out.Next(kLong, true, Ask), Way::kPastCache) << "the rank with the higher number follows";
  EXPECT_TRUE(out.meets());
  out.Next(kLong, true, Ask);
  out.Next(kLong, true, Ask);
  EXPECT_FALSE(out.meets()) << "nothing has come for long";
}

}  // namespace
}  // namespace cohort::comm::shm
