// The way of long private messages is the quicker one of the pair, and changes when that does.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/private_way.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm::testing {
namespace {

using shm::ReceivedTimes;
using shm::Way;
using shm::WayChooser;
using shm::WayTime;

constexpr size_t kBytes = 64 << 10;

TEST(WayTime, IsTheSecondLeastOfTheLastFive) {
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

TEST(ReceivedTimes, AreToldInTwoWords) {
  ReceivedTimes times;
  EXPECT_TRUE(times.Told(true).can_read());
  EXPECT_FALSE(times.Told(false).can_read());
  const size_t bytes[] = {2 << 10, 8 << 10, 64 << 10, 4 << 20};
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

TEST(MessageTime, OfAReadIsTheTimeInsideItsParts) {
  shm::MessageTime time;
  time.Begin(/*now_ns=*/1000, /*reading_ns=*/50);
  for (int part = 0; part < 3; ++part) time.AddPart(100);
  EXPECT_EQ(time.OfRead(), 300u);
  time.Begin(5000, 350);
  time.AddPart(70);
  EXPECT_EQ(time.OfRead(), 70u);
}

TEST(MessageTime, OfCopiesLeavesOutReadsBeyondCopyingOut) {
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

// How many messages went each way.
struct Count {
  int copied = 0;
  int past_cache = 0;
  int read = 0;
  friend bool operator==(const Count&, const Count&) = default;
};

// A pair of ranks on which each way takes a given time, in ns for a KiB.
struct Times {
  uint64_t copied_in, copied_out;
  uint64_t past_in, past_out;
  uint64_t read;
};

class Pair {
 public:
  Pair(Way first, const Times& times) : chooser_(first), times_(times) {}
  void Take(const Times& times) { times_ = times; }
  Way Send(bool may_read = true) {
    const Way way = chooser_.Choose(kBytes, received_.Told(true), may_read);
    const bool copied = way == Way::kCopied;
    if (way != Way::kRead) chooser_.NoteCopiedIn(way, kBytes, (copied ? times_.copied_in : times_.past_in) * 64);
    received_.Note(way, kBytes, (copied ? times_.copied_out : way == Way::kRead ? times_.read : times_.past_out) * 64);
    return way;
  }
  Count Send(int messages, bool may_read = true) {
    Count count;
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
              (Count{3 - (first == Way::kCopied), 3 - (first == Way::kPastCache), 3 - (first == Way::kRead)}));
    for (const auto& [times, best] :
         {std::pair(kNear, Way::kCopied), std::pair(kFar, Way::kRead), std::pair(kFarInOtherCaches, Way::kPastCache),
          std::pair(kInBetween, Way::kRead)}) {
      Pair pair(first, times);
      pair.Send(9);
      const Count count = pair.Send(100);
      EXPECT_GE(best == Way::kCopied ? count.copied : best == Way::kRead ? count.read : count.past_cache, 85);
    }
  }
}

TEST(WayChooser, DoesNotReadWhatMayNotBeRead) {
  for (const Way first : {Way::kCopied, Way::kPastCache, Way::kRead}) {
    Pair pair(first, kFar);
    const Count count = pair.Send(1000, /*may_read=*/false);
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
  const Count of_twice = twice.Send(100'000);
  EXPECT_GT(100'000 - of_twice.copied, 1000);
  EXPECT_LT(100'000 - of_twice.copied, 1600);
  Pair tenfold(Way::kRead, {0, 500, 0, 500, 50});
  const Count of_tenfold = tenfold.Send(100'000);
  EXPECT_GT(100'000 - of_tenfold.read, 200);
  EXPECT_LT(100'000 - of_tenfold.read, 320);
}

TEST(WayChooser, TakesAnyWordsOfAPeer) {
  std::mt19937_64 random(7);
  WayChooser chooser(Way::kCopied);
  int read = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Way copied = random() % 2 == 0 ? Way::kCopied : Way::kPastCache;
    if (random() % 2 == 0) chooser.NoteCopiedIn(copied, random() % (1 << 22), random() >> (random() % 64));
    const shm::ToldTimes told{{random() >> (random() % 64), random() >> (random() % 64)}};
    const bool may_read = random() % 4 != 0;
    const Way way = chooser.Choose(random() % (1 << 22), told, may_read);
    EXPECT_TRUE(way != Way::kRead || may_read);
    read += way == Way::kRead ? 1 : 0;
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, 100'000);
}

constexpr LinkSpec kSpec{.group = 1, .epoch = 1, .group_rank = 0, .peer = 1, .peer_world_rank = 1};

// The line of the latest message from rank 0 to rank 1.
const shm::Line& LatestLine(LocalWorld& world) {
  const auto block = world.segment(1).LookUp(0, shm::LinkKey(kSpec, 0, 1));
  EXPECT_TRUE(block.has_value());
  const auto* memory = static_cast<const std::byte*>(*world.segment(1).Map(*block));
  const auto* slots = reinterpret_cast<const shm::Slot*>(memory + sizeof(shm::EndpointHeader) + shm::AckBytes(1));
  const shm::Line* latest = &slots->line;
  for (size_t i = 1; i < shm::kLinkSlots; ++i) {
    const shm::Line& line = slots[i].line;
    if ((line.stamp & shm::kNumberMask) > (latest->stamp & shm::kNumberMask)) latest = &line;
  }
  return *latest;
}
shm::Descriptor LatestDescriptor(LocalWorld& world) {
  shm::Descriptor descriptor;
  std::memcpy(&descriptor, LatestLine(world).payload, sizeof descriptor);
  return descriptor;
}
Way LatestWay(LocalWorld& world) {
  return shm::KindOf(LatestLine(world).stamp) == shm::MessageKind::kPrivate
             ? Way::kRead
             : static_cast<Way>(LatestDescriptor(world).past_cache);
}

// The words in which rank 1 tells rank 0 its times.
shm::Ack& AckOf(LocalWorld& world) {
  const auto block = world.segment(0).LookUp(1, shm::LinkKey(kSpec, 1, 0));
  EXPECT_TRUE(block.has_value());
  auto* memory = static_cast<std::byte*>(*world.segment(0).Map(*block));
  return *reinterpret_cast<shm::Ack*>(memory + sizeof(shm::EndpointHeader));
}

// How `messages` messages of `bytes` bytes of private memory went, one after another.
Count SendThrough(LocalWorld& world, size_t bytes, uint64_t messages) {
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  Count count;
  for (uint64_t message = 0; message < messages; ++message) {
    const std::vector<std::byte> data = Pattern(bytes, message);
    std::vector<std::byte> received(data.size());
    SendOperation send = SendOf(data.data(), data.size());
    RecvOperation recv = RecvOf(received.data(), received.size());
    EXPECT_TRUE(DriveAll({[&] { return a->TrySend(send); }, [&] { return b->TryRecv(recv); }})) << send.error;
    EXPECT_EQ(received, data);
    const Way way = LatestWay(world);
    ++(way == Way::kCopied ? count.copied : way == Way::kRead ? count.read : count.past_cache);
  }
  return count;
}

TEST(PrivateMessages, GoOneWayWhereItIsForced) {
  LocalWorld reads(2, {.private_reads = true}), copies(2, {.private_reads = false});
  // The first finds out whether the receiver can read.
  EXPECT_GE(SendThrough(reads, 8192, 50).read, 49);
  EXPECT_EQ(SendThrough(copies, 8192, 50), (Count{.copied = 50}));
}

// A receiver may copy in what it sends itself between two parts of a read.
TEST(PrivateMessages, AreReadInTheTimeOfTheReadsAlone) {
  constexpr size_t kLong = 1 << 20;
  LocalWorld world(2, {.private_reads = true});
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  const std::vector<std::byte> data = Pattern(kLong, 3);
  std::vector<std::byte> received(kLong);
  for (int message = 0; message < 6; ++message) {
    SendOperation send = SendOf(data.data(), kLong);
    RecvOperation recv = RecvOf(received.data(), kLong);
    const auto receive = [&] {
      const Progress progress = b->TryRecv(recv);
      if (progress == Progress::kMoved) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return progress;
    };
    ASSERT_TRUE(DriveAll({[&] { return a->TrySend(send); }, receive})) << send.error;
  }
  const shm::Ack& ack = AckOf(world);
  const shm::ToldTimes times{{ack.told[0].load(), ack.told[1].load()}};
  const uint32_t told = times.Time(Way::kRead, shm::WaySizeOf(kLong));
  EXPECT_GT(told, 0u);
  EXPECT_LT(told, WayTime::kMost);  // the three pauses alone are 6 us for a KiB
}

TEST(PrivateMessages, SayHowLongTheirSenderReadMeanwhile) {
  constexpr size_t kLong = 1 << 20;
  LocalWorld world(2, {.private_reads = true});
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  const std::vector<std::byte> data = Pattern(kLong, 3);
  std::vector<std::byte> to_a(kLong), to_b(kLong);
  for (int message = 0; message < 3; ++message) {
    SendOperation from_a = SendOf(data.data(), kLong), from_b = SendOf(data.data(), kLong);
    RecvOperation at_a = RecvOf(to_a.data(), kLong), at_b = RecvOf(to_b.data(), kLong);
    AckOf(world).told[0].store(0);  // as if rank 1 could not read: rank 0 copies, and reads itself
    ASSERT_TRUE(DriveAll({[&] { return a->TrySend(from_a); }, [&] { return a->TryRecv(at_a); },
                          [&] { return b->TrySend(from_b); }, [&] { return b->TryRecv(at_b); }}));
    EXPECT_EQ(LatestWay(world), Way::kCopied);
    if (message > 0) {
      EXPECT_GT(LatestDescriptor(world).reading_ns, 0u);
    }
  }
  EXPECT_EQ(to_a, data);
  EXPECT_EQ(to_b, data);
}

TEST(PrivateMessages, TryAllWaysWhereItIsNot) {
  LocalWorld world(2, {});
  const Count count = SendThrough(world, 8192, 400);
  EXPECT_GE(count.copied, 3);
  EXPECT_GE(count.past_cache, 3);
  EXPECT_GE(count.read, 3);
}

TEST(PrivateMessages, TryBothCopiesOfShortOnes) {
  LocalWorld world(2, {});
  const Count count = SendThrough(world, 4096, 2000);
  EXPECT_GE(count.copied, 3 * static_cast<int>(shm::kShortRun));
  EXPECT_GE(count.past_cache, 3 * static_cast<int>(shm::kShortRun));
  EXPECT_EQ(count.read, 0);
  EXPECT_EQ(SendThrough(world, shm::kPastCacheFrom - 1, 200), (Count{.copied = 200}));
}

}  // namespace
}  // namespace cohort::comm::testing
