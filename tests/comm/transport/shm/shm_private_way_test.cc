// Private messages between two ranks go the way that is chosen or forced, and say how long they took.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cohort/comm/transport/shm/endpoint.h"
#include "cohort/comm/transport/shm/layout.h"
#include "cohort/comm/transport/shm/way/message_time.h"
#include "cohort/comm/transport/shm/way/way_time.h"
#include "tests/comm/transport/shm/local_world.h"
#include "tests/comm/transport/shm/way_count.h"

namespace cohort::comm::testing {
namespace {

using shm::Way;
using shm::WayTime;

constexpr LinkSpec kSpec{.group = 1, .epoch = 1, .peer_world_rank = 1};

// The line of the latest message from rank 0 to rank 1.
const shm::Line& LatestLine(LocalWorld& world, const LinkSpec& spec = kSpec) {
  const auto block = world.segment(1).LookUp(0, shm::LinkKey(spec, 0, 1));
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
shm::Descriptor LatestDescriptor(LocalWorld& world, const LinkSpec& spec = kSpec) {
  shm::Descriptor descriptor;
  std::memcpy(&descriptor, LatestLine(world, spec).payload, sizeof descriptor);
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
WayCount SendThrough(LocalWorld& world, size_t bytes, uint64_t messages) {
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  WayCount count;
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

TEST(PrivateMessages, MessagesGoTheForcedWay) {
  LocalWorld reads(2, {.private_reads = true}), copies(2, {.private_reads = false});
  // The first finds out whether the receiver can read.
  EXPECT_GE(SendThrough(reads, 8192, 50).read, 49);
  EXPECT_EQ(SendThrough(copies, 8192, 50), (WayCount{.copied = 50}));
}

// A receiver may copy in what it sends itself between two parts of a read.
TEST(PrivateMessages, ReadsAreTimedWithoutTheWorkBetweenTheirParts) {
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
  const shm::ToldTimes times{{ack.told[0].load(), ack.told[1].load(), ack.told[2].load()}};
  const uint32_t told = times.Time(Way::kRead, shm::WaySizeOf(kLong));
  EXPECT_GT(told, 0u);
  EXPECT_LT(told, WayTime::kMost);  // the three pauses alone are 6 us for a KiB
}

TEST(PrivateMessages, MessagesSayHowLongTheirSenderReadMeanwhile) {
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

// The ring that the latest message went through, if it was copied.
uint64_t LatestRingBytes(LocalWorld& world) { return LatestDescriptor(world).area_bytes; }

TEST(PrivateMessages, LinksGetALargerRingAfterMuchWasSent) {
  LocalWorld world(2, {.private_reads = false});
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  size_t sent = 0;
  bool grown = false;
  for (uint64_t message = 0; message < 400; ++message) {
    const size_t bytes = 2000 + message * 37;
    const std::vector<std::byte> data = Pattern(bytes, message);
    std::vector<std::byte> received(bytes);
    SendOperation send = SendOf(data.data(), bytes);
    RecvOperation recv = RecvOf(received.data(), bytes);
    ASSERT_TRUE(DriveAll({[&] { return a->TrySend(send); }, [&] { return b->TryRecv(recv); }})) << send.error;
    ASSERT_EQ(received, data);
    sent += bytes;
    if (sent < shm::kGrowRingAfter) {
      EXPECT_EQ(LatestRingBytes(world), shm::kFirstRingBytes);
    }
    grown = LatestRingBytes(world) > shm::kFirstRingBytes;
    EXPECT_TRUE(shm::IsRingSize(LatestRingBytes(world)));
  }
  EXPECT_TRUE(grown);
}

// Each link takes its part of what a rank may spend on large rings, and gives it back.
TEST(PrivateMessages, LargeRingsAreBoundedForAllLinksOfARank) {
  LocalWorld world(2, {.private_reads = false});
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Link>> links;
    uint64_t large = 0;  // bytes
    int small = 0;       // links
    constexpr size_t kLinks = shm::kGrownRingsBytes / shm::kLeastGrownRingBytes + 4;
    const std::vector<std::byte> data = Pattern(shm::kGrowRingAfter, 1);
    std::vector<std::byte> received(data.size());
    for (size_t i = 0; i < kLinks; ++i) {
      const uint64_t group = 100 + static_cast<uint64_t>(round) * kLinks + i;
      links.push_back(world.Connect(0, 1, group));
      links.push_back(world.Connect(1, 0, group));
      Link &a = *links[links.size() - 2], &b = *links.back();
      for (int message = 0; message < 2; ++message) {
        SendOperation send = SendOf(data.data(), data.size());
        RecvOperation recv = RecvOf(received.data(), data.size());
        ASSERT_TRUE(DriveAll({[&] { return a.TrySend(send); }, [&] { return b.TryRecv(recv); }})) << send.error;
      }
      ASSERT_EQ(received, data);
      LinkSpec spec = kSpec;
      spec.group = group;
      const uint64_t bytes = LatestDescriptor(world, spec).area_bytes;
      if (bytes > shm::kFirstRingBytes) large += bytes;
      small += bytes == shm::kFirstRingBytes ? 1 : 0;
    }
    EXPECT_GT(large, 0u);
    EXPECT_LE(large, shm::kGrownRingsBytes);
    EXPECT_GT(small, 0u);
  }
}

TEST(PrivateMessages, MessagesTryAllWaysWhereNoneIsForced) {
  LocalWorld world(2, {});
  const WayCount count = SendThrough(world, 8192, 400);
  EXPECT_GE(count.copied, 3);
  EXPECT_GE(count.past_cache, 3);
  EXPECT_GE(count.read, 3);
}

TEST(PrivateMessages, ShortMessagesTryBothCopies) {
  LocalWorld world(2, {});
  const WayCount count = SendThrough(world, 4096, 2000);
  EXPECT_GE(count.copied, 3 * static_cast<int>(shm::kShortRun));
  EXPECT_GE(count.past_cache, 3 * static_cast<int>(shm::kShortRun));
  EXPECT_EQ(count.read, 0);
  EXPECT_EQ(SendThrough(world, shm::kPastCacheFrom - 1, 200), (WayCount{.copied = 200}));
}

}  // namespace
}  // namespace cohort::comm::testing
