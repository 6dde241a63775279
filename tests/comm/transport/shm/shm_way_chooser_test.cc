// The choice of a way by the times of all: the quicker one of the pair, and another one when that changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>

#include "cohort/comm/transport/shm/way/arrivals.h"
#include "cohort/comm/transport/shm/way/message_time.h"
#include "cohort/comm/transport/shm/way/way_chooser.h"
#include "cohort/comm/transport/shm/way/way_time.h"
#include "tests/comm/transport/shm/way_count.h"

namespace cohort::comm::testing {
namespace {

using shm::ReceivedTimes;
using shm::Way;
using shm::WayChooser;
using shm::WayTime;

constexpr size_t kBytes = 64 << 10;
constexpr size_t kRingBytes = 2 << 20;  // of plain copies
constexpr size_t kPastRingBytes = 1 << 20;

TEST(WayTime, TheTimeOfAWayIsTheSecondLeastOfTheLastFive) {
  WayTime time;
  time.Note(kBytes, 64 * 50);
  time.Note(kBytes, 64 * 50);
  EXPECT_EQ(time.ns_per_kib(), 0u);  // two are not enough
  time.Note(kBytes, 64 * 50);
  EXPECT_EQ(time.ns_per_kib(), 50u);
  time.Note(kBytes, 5'000'000);  // interrupted
  time.Note(kBytes, 5'000'000);
  EXPECT_EQ(time.ns_per_kib(), 50u);
  for (int i = 0; i < 3; ++i) time.Note(kBytes, 64 * 500);
  EXPECT_EQ(time.ns_per_kib(), 500u);
  for (int i = 0; i < 3; ++i) time.Note(kBytes, 64 * 900);  // {500, 500, 900, 900, 900}
  EXPECT_EQ(time.ns_per_kib(), 500u);
  time.Note(kBytes, 64 * 900);
  EXPECT_EQ(time.ns_per_kib(), 900u);
  for (int i = 0; i < 2; ++i) time.Note(kBytes, 64 * 100);
  EXPECT_EQ(time.ns_per_kib(), 100u);
  for (int i = 0; i < 5; ++i) time.Note(kBytes, ~uint64_t{0} >> 12);
  EXPECT_EQ(time.ns_per_kib(), WayTime::kMost);
  for (int i = 0; i < 5; ++i) time.Note(kBytes, 0);
  EXPECT_EQ(time.ns_per_kib(), 1u);
}

TEST(ReceivedTimes, TimesAreToldInThreeWords) {
  ReceivedTimes times;
  EXPECT_TRUE(times.Told(true).can_read());
  EXPECT_FALSE(times.Told(false).can_read());
  const size_t bytes[] = {2 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20};
  const Way ways[] = {Way::kCopied, Way::kPastCache, Way::kRead};
  const auto time_of = [](Way way, size_t size) {
    return static_cast<uint32_t>(10 + 300 * static_cast<int>(way) + size);
  };
  for (size_t size = 0; size < shm::kWaySizes; ++size) {
    ASSERT_EQ(shm::WaySizeOf(bytes[size]), size);
    for (const Way way : ways) {
      EXPECT_EQ(times.Told(true).Time(way, size), 0u);
      for (int i = 0; i < 3; ++i) times.Note(way, bytes[size], bytes[size] / 1024 * time_of(way, size));
    }
  }
  EXPECT_TRUE(times.Told(true).can_read());
  EXPECT_FALSE(times.Told(false).can_read());
  for (size_t size = 0; size < shm::kWaySizes; ++size) {
    for (const Way way : ways) EXPECT_EQ(times.Told(true).Time(way, size), time_of(way, size));
  }
}

TEST(MessageTime, TheTimeOfAReadIsThatInsideItsParts) {
  shm::MessageTime time;
  time.Begin(/*now_ns=*/1000, /*reading_ns=*/50);
  for (int part = 0; part < 3; ++part) time.AddPart(100);
  EXPECT_EQ(time.InParts(), 300u);
  time.Begin(5000, 350);
  time.AddPart(70);
  EXPECT_EQ(time.InParts(), 70u);
}

TEST(MessageTime, TheTimeOfCopiesLeavesOutReadsBeyondCopyingOut) {
  shm::MessageTime time;
  time.Begin(/*now_ns=*/1000, /*reading_ns=*/50);
  for (int part = 0; part < 3; ++part) time.AddPart(100);
  EXPECT_EQ(time.OfCopies(2000, 50, 0), 1000u);       // no reads
  EXPECT_EQ(time.OfCopies(2000, 50, 300), 1000u);     // as long as copying out
  EXPECT_EQ(time.OfCopies(2000, 50, 700), 600u);      // the sender's
  EXPECT_EQ(time.OfCopies(2000, 50 + 700, 0), 600u);  // the receiver's
  EXPECT_EQ(time.OfCopies(2000, 50 + 700, 500), 600u);
  EXPECT_EQ(time.OfCopies(2000, 50, 1'000'000), 300u);  // any word of a peer is good
}

// A pair of ranks on which each way takes a given time, in ns for a KiB.
struct Times {
  uint64_t copied_in, copied_out;
  uint64_t past_in, past_out;
  uint64_t read;
};

class Pair {
 public:
  Pair(Way first, const Times& times) : chooser_(first, /*leads=*/true), times_(times) {}
  void Take(const Times& times) { times_ = times; }
  Way Send(bool may_read = true) {
    const Way way = chooser_.Choose({.bytes = kBytes,
                                     .told = received_.Told(true),
                                     .may_read = may_read,
                                     .ring_bytes = {kRingBytes, kPastRingBytes}});
    const bool copied = way == Way::kCopied;
    if (way != Way::kRead) chooser_.NoteCopiedIn(way, kBytes, (copied ? times_.copied_in : times_.past_in) * 64);
    received_.Note(way, kBytes, (copied ? times_.copied_out : way == Way::kRead ? times_.read : times_.past_out) * 64);
    return way;
  }
  WayCount Send(int messages, bool may_read = true) {
    WayCount count;
    for (int i = 0; i < messages; ++i) {
      const Way way = Send(may_read);
      ++(way == Way::kCopied ? count.copied : way == Way::kRead ? count.read : count.past_cache);
    }
    return count;
  }

 private:
  WayChooser chooser_;
  ReceivedTimes received_;
  Times times_;
};

// Copies are quickest; reads are; copies past the cache are; copying out alone would be, but not with copying in.
constexpr Times kNear = {10, 20, 60, 60, 60};
constexpr Times kFar = {300, 300, 100, 100, 100};
constexpr Times kFarInOtherCaches = {300, 300, 40, 40, 100};
constexpr Times kInBetween = {60, 60, 60, 70, 100};

TEST(WayChooser, TriesAllWaysAndTakesTheQuickest) {
  for (const Way first : {Way::kCopied, Way::kPastCache, Way::kRead}) {
    Pair start(first, kNear);
    EXPECT_EQ(start.Send(), first);
    EXPECT_EQ(start.Send(8),
              (WayCount{3 - (first == Way::kCopied), 3 - (first == Way::kPastCache), 3 - (first == Way::kRead)}));
    for (const auto& [times, best] :
         {std::pair(kNear, Way::kCopied), std::pair(kFar, Way::kRead), std::pair(kFarInOtherCaches, Way::kPastCache),
          std::pair(kInBetween, Way::kRead)}) {
      Pair pair(first, times);
      pair.Send(9);
      const WayCount count = pair.Send(100);
      EXPECT_GE(best == Way::kCopied ? count.copied : best == Way::kRead ? count.read : count.past_cache, 85);
    }
  }
}

TEST(WayChooser, DoesNotReadMemoryThatMayNotBeRead) {
  for (const Way first : {Way::kCopied, Way::kPastCache, Way::kRead}) {
    Pair pair(first, kFar);
    const WayCount count = pair.Send(1000, /*may_read=*/false);
    EXPECT_EQ(count.read, 0);
    EXPECT_GT(count.past_cache, 900);
  }
}

TEST(WayChooser, ForgivesAWayThatBeganSlowly) {
  Pair pair(Way::kCopied, {150, 150, 300, 300, 500});  // memory that the reader touches for the first time
  pair.Send(9);
  pair.Take({150, 150, 300, 300, 100});
  pair.Send(120);
  EXPECT_GE(pair.Send(50).read, 44);
}

TEST(WayChooser, FollowsAPairThatIsMoved) {
  Pair pair(Way::kCopied, kNear);
  pair.Send(20);
  EXPECT_GE(pair.Send(50).copied, 44);
  pair.Take(kFar);  // moved away: the way in use shows it at once
  pair.Send(4);
  EXPECT_LE(pair.Send(50).copied, 3);
  pair.Take(kNear);  // and back: the others are slower than copies used to be, no more; a try shows it
  pair.Send(3000);
  EXPECT_GE(pair.Send(50).copied, 47);
}

TEST(WayChooser, TriesASlowerWayTheMoreRarelyTheSlowerItIs) {
  Pair twice(Way::kCopied, {0, 30, 30, 30, 60});
  const WayCount of_twice = twice.Send(100'000);
  EXPECT_GT(100'000 - of_twice.copied, 1000);
  EXPECT_LT(100'000 - of_twice.copied, 2000);  // some until the ring past the cache has gone round
  Pair tenfold(Way::kRead, {0, 500, 0, 500, 50});
  const WayCount of_tenfold = tenfold.Send(100'000);
  EXPECT_GT(100'000 - of_tenfold.read, 200);
  EXPECT_LT(100'000 - of_tenfold.read, 320);
}

// One way that copies is quick once its ring has gone round, and slow again after as many other messages.
class WarmingPair {
 public:
  WarmingPair(Way warming, const Times& cold, const Times& warm)
      : warming_(warming),
        round_(static_cast<int>((warming == Way::kCopied ? kRingBytes : kPastRingBytes) / kBytes)),
        cold_(cold),
        warm_(warm),
        pair_(Way::kRead, cold) {}
  // How many of the messages went the way that warms up.
  int Send(int messages) {
    int warming = 0;
    for (int i = 0; i < messages; ++i) {
      pair_.Take(warmth_ >= round_ ? warm_ : cold_);
      const bool goes = pair_.Send() == warming_;
      warmth_ = std::clamp(warmth_ + (goes ? 1 : -1), 0, 2 * round_);
      warming += goes ? 1 : 0;
    }
    return warming;
  }
  // Something else takes the ring's place in the caches.
  void Cool() { warmth_ = 0; }
  int round() const { return round_; }

 private:
  const Way warming_;
  const int round_;
  const Times cold_, warm_;
  Pair pair_;
  int warmth_ = 0;
};

TEST(WayChooser, WarmsARingThatIsPromising) {
  WarmingPair copies(Way::kCopied, {53, 53, 200, 200, 98}, {25, 25, 200, 200, 98});
  copies.Send(300);
  EXPECT_GT(copies.Send(1000), 900);
  WarmingPair thrice(Way::kCopied, {140, 140, 200, 200, 98}, {25, 25, 200, 200, 98});  // while it is cold
  thrice.Send(600);
  EXPECT_GT(thrice.Send(1000), 900);
  WarmingPair past(Way::kPastCache, {300, 300, 75, 75, 98}, {300, 300, 40, 40, 98});
  past.Send(300);
  EXPECT_GT(past.Send(1000), 900);
}

TEST(WayChooser, KeepsAWayWhoseRingHasGrownCold) {
  for (const Way way : {Way::kCopied, Way::kPastCache}) {
    const Times cold = way == Way::kCopied ? Times{53, 53, 200, 200, 98} : Times{200, 200, 53, 53, 98};
    const Times warm = way == Way::kCopied ? Times{25, 25, 200, 200, 98} : Times{200, 200, 25, 25, 98};
    WarmingPair pair(way, cold, warm);
    pair.Send(1000);
    for (int i = 0; i < 20; ++i) {
      pair.Cool();
      EXPECT_GE(pair.Send(pair.round() + 3), pair.round() - 3);  // perhaps one trial of another way meanwhile
      EXPECT_GE(pair.Send(200), 190);
    }
  }
}

// Two ranks that send to each other: how long one exchange takes, by the ways of both.
class Exchange {
 public:
  Exchange(Way first, const Times& times, bool other_can_read = true)
      : leader_(first, /*leads=*/true),
        follower_(first, /*leads=*/false),
        times_(times),
        other_can_read_(other_can_read) {}
  void Take(const Times& times) { times_ = times; }
  // Returns the ways of the leader's and of the follower's message.
  std::pair<Way, Way> Next() {
    const Way mine = leader_.Choose({.bytes = kBytes,
                                     .told = {},
                                     .may_read = true,
                                     .ring_bytes = {kRingBytes, kPastRingBytes},
                                     .heard = from_follower_.Latest(shm::WaySizeOf(kBytes))});
    const Way others = follower_.Choose({.bytes = kBytes,
                                         .told = {},
                                         .may_read = other_can_read_,
                                         .ring_bytes = {kRingBytes, kPastRingBytes},
                                         .heard = from_leader_.Latest(shm::WaySizeOf(kBytes))});
    from_follower_.Note(others, kBytes, 0);
    from_leader_.Note(mine, kBytes, 0);
    // Ranks that do not do the same wait for each other.
    const uint64_t mixed = mine == others ? 1 : 2;
    for (WayChooser* chooser : {&leader_, &follower_}) {
      const Way sent = chooser == &leader_ ? mine : others, received = chooser == &leader_ ? others : mine;
      if (sent != Way::kRead) {
        chooser->NoteSending(sent, kBytes, 64 * mixed * (sent == Way::kCopied ? times_.copied_in : times_.past_in));
      }
      chooser->NoteReceiving(received, kBytes,
                             64 * mixed *
                                 (received == Way::kRead     ? times_.read
                                  : received == Way::kCopied ? times_.copied_out
                                                             : times_.past_out));
    }
    return {mine, others};
  }
  // How many of `exchanges` went this way on both sides.
  int Both(Way way, int exchanges) {
    int both = 0;
    for (int i = 0; i < exchanges; ++i) both += Next() == std::pair(way, way) ? 1 : 0;
    return both;
  }

 private:
  WayChooser leader_;
  WayChooser follower_;
  shm::Arrivals from_leader_, from_follower_;
  Times times_;
  const bool other_can_read_;
};

TEST(WayChooser, BothSidesOfAnExchangeGoTheQuickestWay) {
  for (const Way first : {Way::kCopied, Way::kPastCache, Way::kRead}) {
    for (const auto& [times, best] :
         {std::pair(kNear, Way::kCopied), std::pair(kFar, Way::kRead), std::pair(kFarInOtherCaches, Way::kPastCache),
          std::pair(kInBetween, Way::kRead)}) {
      Exchange exchange(first, times);
      exchange.Both(best, 20);
      EXPECT_GE(exchange.Both(best, 100), 80);
    }
  }
}

TEST(WayChooser, BothSidesFollowAPairThatIsMoved) {
  Exchange exchange(Way::kCopied, kNear);
  exchange.Both(Way::kCopied, 20);
  exchange.Take(kFar);
  exchange.Both(Way::kRead, 5);
  EXPECT_GE(exchange.Both(Way::kRead, 50), 44);
}

TEST(WayChooser, NeitherSideReadsForOneThatCannot) {
  Exchange exchange(Way::kRead, kFar, /*other_can_read=*/false);
  for (int i = 0; i < 500; ++i) EXPECT_NE(exchange.Next().second, Way::kRead);
  EXPECT_GE(exchange.Both(Way::kPastCache, 100), 80);  // the quickest that is left
}

TEST(WayChooser, ForgetsAnExchangeThatIsOver) {
  WayChooser follower(Way::kCopied, /*leads=*/false);
  shm::Arrivals arrivals;
  const auto choose = [&](size_t bytes) {
    return follower.Choose(
        {.bytes = bytes, .told = {}, .may_read = true, .heard = arrivals.Latest(shm::WaySizeOf(bytes))});
  };
  arrivals.Note(Way::kPastCache, kBytes, 0);
  EXPECT_EQ(choose(kBytes), Way::kPastCache);
  EXPECT_EQ(choose(kBytes), Way::kPastCache);
  EXPECT_EQ(choose(kBytes), Way::kCopied);  // its own
  arrivals.Note(Way::kRead, kBytes, 0);
  EXPECT_EQ(choose(kBytes), Way::kRead);
  EXPECT_EQ(choose(kBytes / 8), Way::kCopied);  // another class
}

// Both ranks copy in at the same time, or one answers the other.
TEST(Arrivals, ArrivalsMeetMessagesCopiedInAtAboutTheSameTime) {
  shm::Arrivals arrivals;
  const size_t size = shm::WaySizeOf(kBytes);
  arrivals.Note(Way::kCopied, kBytes, 1'000);
  EXPECT_FALSE(arrivals.Meets(size));  // nothing was sent
  arrivals.BeginSending(kBytes);
  arrivals.Note(Way::kCopied, kBytes, 2'000);
  EXPECT_TRUE(arrivals.Meets(size));
  arrivals.EndSending(kBytes, 1'500, 2'500);
  arrivals.Note(Way::kCopied, kBytes, 3'500);
  EXPECT_TRUE(arrivals.Meets(size));  // as long after the copy as that took
  arrivals.Note(Way::kCopied, kBytes, 3'501);
  EXPECT_FALSE(arrivals.Meets(size));
  arrivals.BeginSending(kBytes / 8);  // another class
  arrivals.Note(Way::kCopied, kBytes, 4'000);
  EXPECT_FALSE(arrivals.Meets(size));
}

// Nothing that the other side does makes a message readable that its readers may not read.
TEST(WayChooser, DoesNotReadMemoryThatMayNotBeReadInAnExchange) {
  for (const bool leads : {true, false}) {
    WayChooser chooser(Way::kRead, leads);
    shm::Arrivals arrivals;
    for (int i = 0; i < 100; ++i) {
      arrivals.Note(Way::kRead, kBytes, 0);
      const std::optional<Way> heard = arrivals.Latest(shm::WaySizeOf(kBytes));
      EXPECT_NE(chooser.Choose({.bytes = kBytes, .told = {}, .may_read = false, .heard = heard}), Way::kRead);
    }
  }
}

// Plain copies that are a third slower than reads cost little, whatever the length of the messages.
TEST(WayChooser, SpendsLittleOnLongTrials) {
  for (const size_t bytes : {size_t{1} << 10, size_t{4} << 10, size_t{8} << 10, size_t{64} << 10, size_t{4} << 20}) {
    for (const bool may_read : {true, false}) {
      WayChooser chooser(Way::kPastCache, true);
      shm::ReceivedTimes received;
      uint64_t plain = 0;
      constexpr uint64_t kMessages = 200'000;
      for (uint64_t i = 0; i < kMessages; ++i) {
        const Way way = chooser.Choose(
            {.bytes = bytes, .told = received.Told(true), .may_read = may_read, .ring_bytes = {4 << 20, 1 << 20}});
        if (way != Way::kRead) chooser.NoteCopiedIn(way, bytes, bytes / 1024);
        const uint64_t per_kib = way == Way::kCopied ? 133 : way == Way::kPastCache ? 100 : 300;
        received.Note(way, bytes, per_kib * bytes / 1024);
        plain += way == Way::kCopied ? 1 : 0;
      }
      EXPECT_LT(plain * 100, kMessages * 9) << bytes;  // of which ordinary trials are 2.3 %; each costs a third
    }
  }
}

TEST(ToldTimes, TimesThatDifferByAnEighthAreToldAgain) {
  EXPECT_FALSE(shm::DifferMuch(0, 0));
  EXPECT_TRUE(shm::DifferMuch(0, 1));
  EXPECT_FALSE(shm::DifferMuch(80, 90));
  EXPECT_TRUE(shm::DifferMuch(80, 91));
  EXPECT_FALSE(shm::DifferMuch(90, 80));
  EXPECT_TRUE(shm::DifferMuch(91, 80));
}

TEST(WayChooser, TakesAnyWordsOfAPeer) {
  std::mt19937_64 random(7);
  WayChooser chooser(Way::kRead, /*leads=*/true);
  shm::Arrivals arrivals;
  int read = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Way copied = random() % 2 == 0 ? Way::kCopied : Way::kPastCache;
    if (random() % 2 == 0) chooser.NoteCopiedIn(copied, random() % (1 << 22), random() >> (random() % 64));
    const shm::ToldTimes told{{random() >> (random() % 64), random() >> (random() % 64), random() >> (random() % 64)}};
    const bool may_read = random() % 4 != 0;
    if (random() % 4 == 0) arrivals.Note(static_cast<Way>(random() % 3), random() % (1 << 22), 0);
    const size_t bytes = random() % (1 << 22);
    const std::optional<Way> heard = random() % 2 == 0 ? arrivals.Latest(shm::WaySizeOf(bytes)) : std::nullopt;
    const Way way = chooser.Choose(
        {.bytes = bytes, .told = told, .may_read = may_read, .ring_bytes = random() % (1 << 23), .heard = heard});
    EXPECT_TRUE(way != Way::kRead || may_read);
    read += way == Way::kRead ? 1 : 0;
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, 100'000);
}

}  // namespace
}  // namespace cohort::comm::testing
