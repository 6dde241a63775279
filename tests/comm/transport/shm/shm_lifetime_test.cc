// Links come and go: nothing is lost that was sent, nothing is freed that a peer may use, nothing is kept for ever.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::DriveAll;
using testing::kSignature;
using testing::LocalWorld;
using testing::Pattern;
using testing::RecvOf;
using testing::SendOf;

// Memory that the segment really uses.
uint64_t SegmentBytes(runtime::Segment& segment) {
  struct stat info{};
  EXPECT_EQ(fstat(segment.fd(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(ShmLifetime, LatePeerStillReadsWhatAClosedLinkHadSent) {
  LocalWorld world(2);
  const std::vector<std::byte> small = Pattern(8, 1), large = Pattern(5000, 2);
  {
    auto a = world.Connect(0, 1);
    SendOperation first = SendOf(small.data(), small.size()), second = SendOf(large.data(), large.size());
    ASSERT_EQ(a->TrySend(first), Progress::kDone);
    ASSERT_EQ(a->TrySend(second), Progress::kDone);
  }
  EXPECT_EQ(world.transport(0).unreleased_blocks(), 1u);
  {
    auto b = world.Connect(1, 0);
    std::vector<std::byte> got_small(8), got_large(5000);
    RecvOperation first = RecvOf(got_small.data(), 8), second = RecvOf(got_large.data(), 5000);
    ASSERT_EQ(b->TryRecv(first), Progress::kDone);
    ASSERT_EQ(b->TryRecv(second), Progress::kDone);
    EXPECT_EQ(got_small, small);
    EXPECT_EQ(got_large, large);
  }
  // Any later connection sweeps.
  auto other = world.Connect(0, 1, 2);
  auto other_peer = world.Connect(1, 0, 2);
  EXPECT_EQ(world.transport(0).unreleased_blocks(), 0u);
  EXPECT_EQ(world.transport(1).unreleased_blocks(), 0u);
}

TEST(ShmLifetime, ChurnOfGroupsNeedsBoundedMemory) {
  constexpr int kRanks = 3;
  LocalWorld world(kRanks);
  uint64_t after_warm_up = 0;
  for (uint64_t group = 1; group <= 1000; ++group) {
    std::vector<std::unique_ptr<Fanout>> fanouts;
    for (int rank = 0; rank < kRanks; ++rank) fanouts.push_back(world.ConnectFanout(rank, kRanks, group));
    auto a = world.Connect(0, 1, group), b = world.Connect(1, 0, group);
    for (size_t bytes : {8u, 3000u, 100'000u}) {
      const std::vector<std::byte> data = Pattern(bytes, group);
      std::vector<std::byte> received(bytes), published(bytes);
      SendOperation send = SendOf(data.data(), bytes);
      RecvOperation recv = RecvOf(received.data(), bytes);
      ASSERT_TRUE(DriveAll({[&] { return a->TrySend(send); }, [&] { return b->TryRecv(recv); }}))
          << send.error << recv.error;
      ASSERT_EQ(received, data);
      if (bytes > fanouts[0]->max_bytes()) continue;
      SendOperation publish = SendOf(data.data(), bytes);
      ASSERT_EQ(fanouts[2]->TryPublish(publish), Progress::kDone) << publish.error;
      RecvOperation read = RecvOf(published.data(), bytes);
      ASSERT_EQ(fanouts[0]->TryRecv(2, read), Progress::kDone);
      ASSERT_EQ(published, data);
    }
    if (group % 2 == 0) b.reset();  // either side may close first
    a.reset();
    b.reset();
    fanouts.clear();
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_LE(world.transport(rank).unreleased_blocks(), 4u);
    if (group == 20) after_warm_up = SegmentBytes(world.agent());
  }
  EXPECT_LE(SegmentBytes(world.agent()), after_warm_up + (1 << 20));
}

TEST(ShmLifetime, BlocksOfAPeerThatEndedAreFreed) {
  LocalWorld world(3);
  {
    auto to_1 = world.Connect(0, 1);
    auto fanout_0 = world.ConnectFanout(0, 3), fanout_1 = world.ConnectFanout(1, 3);
  }
  EXPECT_EQ(world.transport(0).unreleased_blocks(), 2u);
  world.agent().control(1).state.store(3);  // lost
  auto other = world.Connect(0, 2, 5);
  EXPECT_EQ(world.transport(0).unreleased_blocks(), 1u);  // rank 2 may still come to the fan-out
  world.agent().control(2).state.store(2);                // ended in order
  auto another = world.Connect(0, 2, 6);
  EXPECT_EQ(world.transport(0).unreleased_blocks(), 0u);
}

// A sender whose deadline has passed closes its link, and its user goes on to use the buffer.
TEST(ShmLifetime, AMessageOfferedInPlaceIsNotTakenAfterItsLinkIsClosed) {
  constexpr size_t kBytes = 100'000;
  for (const bool window : {true, false}) {
    LocalWorld world(2);
    auto a = world.Connect(0, 1), b = world.Connect(1, 0);
    std::vector<std::byte> storage = Pattern(kBytes, 1), received(kBytes);
    std::byte* data = window ? world.Window(0, kBytes) : storage.data();
    // The first shows the sender that the other can read its memory.
    SendOperation first = SendOf(data, kBytes);
    RecvOperation taken = RecvOf(received.data(), kBytes);
    ASSERT_TRUE(DriveAll({[&] { return a->TrySend(first); }, [&] { return b->TryRecv(taken); }})) << taken.error;
    SendOperation second = SendOf(data, kBytes);
    Progress progress = Progress::kMoved;
    while (progress == Progress::kMoved) progress = a->TrySend(second);
    ASSERT_EQ(progress, Progress::kBlocked) << "it was copied, which this test is not about";
    a.reset();
    std::memset(data, 0xff, kBytes);
    RecvOperation late = RecvOf(received.data(), kBytes);
    for (int attempt = 0; attempt < 3; ++attempt) EXPECT_EQ(b->TryRecv(late), Progress::kBlocked) << window;
  }
}

// A rank that has finalised counts as gone, so its peers' blocks are soon others'.
TEST(ShmLifetime, LinkThatOutlivesItsRanksFinalizeTouchesNoOthersMemory) {
  constexpr size_t kBytes = 100'000;
  LocalWorld world(3);
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  std::vector<std::byte> received(kBytes);
  uint64_t word = 0;
  SendOperation hello = SendOf(reinterpret_cast<std::byte*>(&word), 8), answer = hello;
  RecvOperation heard = RecvOf(received.data(), 8), replied = heard;
  ASSERT_TRUE(DriveAll({[&] { return a->TrySend(hello); }, [&] { return b->TryRecv(heard); },
                        [&] { return b->TrySend(answer); }, [&] { return a->TryRecv(replied); }}));
  world.agent().control(0).state.store(2);  // finalised
  b.reset();
  ASSERT_EQ(world.transport(1).unreleased_blocks(), 0u);
  auto to_2 = world.Connect(1, 2, 7), to_1 = world.Connect(2, 1, 7);  // in the same place
  a.reset();
  std::byte* data = world.Window(2, kBytes);
  SendOperation send = SendOf(data, kBytes);
  RecvOperation recv = RecvOf(received.data(), kBytes);
  EXPECT_TRUE(DriveAll({[&] { return to_1->TrySend(send); }, [&] { return to_2->TryRecv(recv); }})) << recv.error;
}

TEST(ShmLifetime, SecondLinkOfTheSameNameIsRefused) {
  LocalWorld world(2);
  auto a = world.Connect(0, 1);
  EXPECT_EQ(world.transport(0).Connect({.group = 1, .epoch = 1, .peer_world_rank = 1}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(ShmLifetime, LinksMayOutliveTheirTransportObject) {
  LocalWorld world(2);
  std::unique_ptr<Link> link;
  {
    ShmTransport transport(world.segment(0), 0, [](int rank) { return rank; });
    link = *transport.Connect({.group = 3, .epoch = 1, .peer_world_rank = 1});
  }
  uint64_t value = 0;
  SendOperation send = SendOf(reinterpret_cast<std::byte*>(&value), 8);
  EXPECT_EQ(link->TrySend(send), Progress::kDone);
}

}  // namespace
}  // namespace cohort::comm
