// Links: what is sent arrives, in order, whatever its size, its place and the protocol that carries it.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::DriveAll;
using testing::EdgeSizes;
using testing::kSignature;
using testing::LocalWorld;
using testing::Pattern;
using testing::RecvOf;
using testing::SendOf;

class ShmStreamTest : public ::testing::TestWithParam<std::optional<bool>> {
 protected:
  ShmStreamTest() : world_(2, {.private_reads = GetParam()}), a_(world_.Connect(0, 1)), b_(world_.Connect(1, 0)) {
    // Both sides have seen each other: from here on private memory is read where allowed.
    Exchange(Pattern(8, 1).data(), 8);
  }

  // From rank 0 to rank 1 and back, each time checked.
  void Exchange(const std::byte* data, size_t bytes) {
    for (auto [from, to] : {std::pair{a_.get(), b_.get()}, std::pair{b_.get(), a_.get()}}) {
      std::vector<std::byte> received(bytes);
      SendOperation send = SendOf(data, bytes);
      RecvOperation recv = RecvOf(received.data(), bytes);
      ASSERT_TRUE(
          DriveAll({[&, from = from] { return from->TrySend(send); }, [&, to = to] { return to->TryRecv(recv); }}))
          << bytes << " bytes: " << send.error << recv.error;
      ASSERT_TRUE(bytes == 0 || std::memcmp(received.data(), data, bytes) == 0) << bytes << " bytes";
    }
  }

  LocalWorld world_;
  std::unique_ptr<Link> a_;
  std::unique_ptr<Link> b_;
};

TEST_P(ShmStreamTest, EverySizeArrivesFromPrivateMemory) {
  for (size_t bytes : EdgeSizes()) Exchange(Pattern(bytes, bytes).data(), bytes);
  const size_t large = (33 << 20) + 5;
  Exchange(Pattern(large, 3).data(), large);
}

TEST_P(ShmStreamTest, EverySizeArrivesFromTheSegment) {
  const size_t large = (33 << 20) + 5;
  std::byte* window = world_.Window(0, large);
  for (size_t bytes : EdgeSizes()) {
    const std::vector<std::byte> data = Pattern(bytes, bytes);
    if (bytes > 0) std::memcpy(window, data.data(), bytes);
    Exchange(window, bytes);
  }
  Exchange(window, large);
}

TEST_P(ShmStreamTest, UnalignedBuffersArrive) {
  const std::vector<std::byte> data = Pattern(100'000, 5);
  for (size_t offset : {1u, 3u, 13u}) {
    for (size_t bytes : {7u, 48u, 1000u, 9000u, 99'000u}) Exchange(data.data() + offset, bytes);
  }
}

TEST_P(ShmStreamTest, ReductionTakesOperandsInTheOrderAskedFor) {
  for (bool incoming_first : {false, true}) {
    for (size_t count : {1u, 2u, 6u, 7u, 512u, 513u, 2048u, 40'000u, 200'001u, 1'000'003u}) {
      const size_t bytes = count * sizeof(uint32_t);
      const std::vector<std::byte> sent = Pattern(bytes, count);
      const std::vector<std::byte> operand = Pattern(bytes, count + 1);
      std::vector<std::byte> out(bytes), expected(bytes);
      const auto& left = incoming_first ? sent : operand;
      const auto& right = incoming_first ? operand : sent;
      testing::Subtract<uint32_t>(expected.data(), left.data(), right.data(), count);

      SendOperation send = SendOf(sent.data(), bytes);
      RecvOperation recv = RecvOf(out.data(), bytes);
      recv.operand = operand.data();
      recv.reduce = testing::Subtract<uint32_t>;
      recv.element_bytes = sizeof(uint32_t);
      recv.incoming_first = incoming_first;
      ASSERT_TRUE(DriveAll({[&] { return a_->TrySend(send); }, [&] { return b_->TryRecv(recv); }})) << recv.error;
      ASSERT_EQ(out, expected) << count << " elements";

      // In place: the operand is the result's memory.
      std::vector<std::byte> accumulator = operand;
      send = SendOf(sent.data(), bytes);
      recv = RecvOf(accumulator.data(), bytes);
      recv.operand = accumulator.data();
      recv.reduce = testing::Subtract<uint32_t>;
      recv.element_bytes = sizeof(uint32_t);
      recv.incoming_first = incoming_first;
      ASSERT_TRUE(DriveAll({[&] { return a_->TrySend(send); }, [&] { return b_->TryRecv(recv); }})) << recv.error;
      ASSERT_EQ(accumulator, expected) << count << " elements in place";
    }
  }
}

TEST_P(ShmStreamTest, EightByteElementsAreReducedWhole) {
  const size_t count = 70'001;
  const std::vector<std::byte> sent = Pattern(count * 8, 1), operand = Pattern(count * 8, 2);
  std::vector<std::byte> out(count * 8), expected(count * 8);
  testing::Subtract<uint64_t>(expected.data(), operand.data(), sent.data(), count);
  SendOperation send = SendOf(sent.data(), count * 8);
  RecvOperation recv = RecvOf(out.data(), count * 8);
  recv.operand = operand.data();
  recv.reduce = testing::Subtract<uint64_t>;
  recv.element_bytes = 8;
  ASSERT_TRUE(DriveAll({[&] { return a_->TrySend(send); }, [&] { return b_->TryRecv(recv); }})) << recv.error;
  EXPECT_EQ(out, expected);
}

// Many operations under way in both directions, tried in random order after the first try, of random sizes.
TEST_P(ShmStreamTest, OutstandingOperationsKeepTheirOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::vector<size_t> sizes = EdgeSizes();
  for (int round = 0; round < 20; ++round) {
    struct Message {
      std::vector<std::byte> data, received;
      SendOperation send;
      RecvOperation recv;
      bool sent = false, taken = false;
    };
    std::deque<Message> messages(1 + random() % 60);
    for (Message& message : messages) {
      const size_t bytes = sizes[random() % sizes.size()];
      message.data = Pattern(bytes, random());
      message.received.resize(bytes);
      message.send = SendOf(message.data.data(), bytes);
      message.recv = RecvOf(message.received.data(), bytes);
      message.sent = a_->TrySend(message.send) == Progress::kDone;
    }
    for (Message& message : messages) message.taken = b_->TryRecv(message.recv) == Progress::kDone;
    size_t left = 1;
    const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
    while (left > 0) {
      ASSERT_FALSE(deadline.passed());
      left = 0;
      for (int i = 0; i < 200; ++i) {
        Message& message = messages[random() % messages.size()];
        if (!message.sent) message.sent = a_->TrySend(message.send) == Progress::kDone;
        Message& other = messages[random() % messages.size()];
        if (!other.taken) other.taken = b_->TryRecv(other.recv) == Progress::kDone;
        ASSERT_TRUE(message.send.error.ok() && other.recv.error.ok()) << message.send.error << other.recv.error;
      }
      for (const Message& message : messages) left += !message.sent + !message.taken;
    }
    for (const Message& message : messages) ASSERT_EQ(message.data, message.received);
  }
}

TEST_P(ShmStreamTest, SlowReaderHoldsTheWriterAndLosesNothing) {
  constexpr size_t kMessages = 100;
  for (size_t bytes : {8u, 300u, 8192u, 20'000u}) {
    std::vector<std::vector<std::byte>> data;
    std::vector<std::unique_ptr<SendOperation>> sends;
    std::vector<bool> done(kMessages);  // one that is read may be done after a later one that is copied
    const auto try_send = [&](size_t i) { done[i] = done[i] || a_->TrySend(*sends[i]) == Progress::kDone; };
    for (size_t i = 0; i < kMessages; ++i) {
      data.push_back(Pattern(bytes, i));
      sends.push_back(std::make_unique<SendOperation>(SendOf(data.back().data(), bytes)));
      try_send(i);
    }
    EXPECT_TRUE(std::count(done.begin(), done.end(), false) > 0) << bytes;  // the rings are bounded
    size_t oldest = 0;
    const auto send_more = [&] {
      while (oldest < kMessages && done[oldest]) ++oldest;
      if (oldest < kMessages) try_send(oldest);
    };
    for (size_t i = 0; i < kMessages; ++i) {
      std::vector<std::byte> received(bytes);
      RecvOperation recv = RecvOf(received.data(), bytes);
      const auto deadline = runtime::Deadline::After(std::chrono::seconds(10));
      while (b_->TryRecv(recv) != Progress::kDone) {
        ASSERT_TRUE(recv.error.ok() && !deadline.passed()) << recv.error;
        send_more();
      }
      ASSERT_EQ(received, data[i]);
    }
    while (oldest < kMessages) send_more();
  }
}

TEST_P(ShmStreamTest, SendFromTheSegmentIsDoneOnlyWhenItWasRead) {
  const size_t bytes = 1 << 20;
  std::byte* window = world_.Window(0, bytes);
  SendOperation send = SendOf(window, bytes);
  for (int i = 0; i < 10; ++i) ASSERT_NE(a_->TrySend(send), Progress::kDone);
  std::vector<std::byte> received(bytes);
  RecvOperation recv = RecvOf(received.data(), bytes);
  while (b_->TryRecv(recv) != Progress::kDone) ASSERT_NE(a_->TrySend(send), Progress::kDone);
  EXPECT_EQ(a_->TrySend(send), Progress::kDone);
}

TEST_P(ShmStreamTest, LanesAndGroupsAreKeptApart) {
  auto lane_a = world_.Connect(0, 1, 1, 7), lane_b = world_.Connect(1, 0, 1, 7);
  auto group_a = world_.Connect(0, 1, 2), group_b = world_.Connect(1, 0, 2);
  uint64_t values[] = {10, 20, 30}, got[3] = {};
  Link* senders[] = {a_.get(), lane_a.get(), group_a.get()};
  Link* receivers[] = {b_.get(), lane_b.get(), group_b.get()};
  for (int i = 0; i < 3; ++i) {
    SendOperation send = SendOf(reinterpret_cast<std::byte*>(&values[i]), 8);
    ASSERT_EQ(senders[i]->TrySend(send), Progress::kDone);
  }
  for (int i = 2; i >= 0; --i) {
    RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(&got[i]), 8);
    ASSERT_EQ(receivers[i]->TryRecv(recv), Progress::kDone);
    EXPECT_EQ(got[i], values[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, ShmStreamTest, ::testing::Values(true, false, std::nullopt), [](const auto& info) {
  return !info.param.has_value() ? "AllWays" : *info.param ? "PrivateReads" : "NoPrivateReads";
});

TEST(ShmStream, ReceiverWaitsForAPeerThatHasNotConnected) {
  LocalWorld world(2);
  auto b = world.Connect(1, 0);
  uint64_t value = 0;
  RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(&value), 8);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(b->TryRecv(recv), Progress::kBlocked);
  auto a = world.Connect(0, 1);
  const uint64_t sent = 77;
  SendOperation send = SendOf(reinterpret_cast<const std::byte*>(&sent), 8);
  ASSERT_EQ(a->TrySend(send), Progress::kDone);
  ASSERT_EQ(b->TryRecv(recv), Progress::kDone);
  EXPECT_EQ(value, 77u);
}

// One way the reader copies out what came while the writer copies in. If both copy in at the same time, short parts
// would gain nothing.
TEST(ShmStream, MessagesThatMeetGoInLongParts) {
  LocalWorld world(2, {.private_reads = false});
  auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  constexpr size_t kBytes = 512 * 1024;
  const std::vector<std::byte> data = Pattern(kBytes, 1);
  // Returns the parts of a's message.
  const auto send = [&](bool meets) {
    std::vector<std::byte> at_b(kBytes), at_a(kBytes);
    SendOperation from_a = SendOf(data.data(), kBytes), from_b = from_a;
    RecvOperation to_b = RecvOf(at_b.data(), kBytes), to_a = RecvOf(at_a.data(), kBytes);
    int parts = 0;
    std::vector<std::function<Progress()>> attempts = {[&] { return a->TrySend(from_a); },
                                                       [&] {
                                                         const Progress progress = b->TryRecv(to_b);
                                                         if (progress != Progress::kBlocked) ++parts;
                                                         return progress;
                                                       }};
    if (meets) {
      attempts.emplace_back([&] { return b->TrySend(from_b); });
      attempts.emplace_back([&] { return a->TryRecv(to_a); });  // while its own message is not all in the ring
    }
    EXPECT_TRUE(DriveAll(attempts));
    EXPECT_EQ(at_b, data);
    EXPECT_EQ(at_a == data, meets);
    return parts;
  };
  for (const bool meets : {false, true, false}) {
    int parts = 0;
    for (int i = 0; i < 4; ++i) parts = send(meets);
    EXPECT_EQ(parts, meets ? 4 : 16);
  }
}

TEST(ShmStream, ReachesLocalPeersOnly) {
  LocalWorld world(2);
  EXPECT_TRUE(world.transport(0).Reaches(1));
  EXPECT_FALSE(world.transport(0).Reaches(0));
  EXPECT_FALSE(world.transport(0).Reaches(2));
  EXPECT_EQ(world.transport(0).Connect({.group = 1, .peer_world_rank = 2}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(ShmStream, ALostPeerFailsPresentAndLaterOperations) {
  LocalWorld world(3);
  auto to_1 = world.Connect(0, 1), to_2 = world.Connect(0, 2);
  uint64_t value = 0;
  RecvOperation pending = RecvOf(reinterpret_cast<std::byte*>(&value), 8);
  ASSERT_EQ(to_1->TryRecv(pending), Progress::kBlocked);
  world.transport(0).OnPeerLost(1, absl::UnavailableError("rank 1 killed by SIGKILL"));
  ASSERT_EQ(to_1->TryRecv(pending), Progress::kFailed);
  EXPECT_EQ(pending.error.code(), absl::StatusCode::kUnavailable);
  SendOperation later = SendOf(reinterpret_cast<std::byte*>(&value), 8);
  EXPECT_EQ(to_1->TrySend(later), Progress::kFailed);
  SendOperation other = SendOf(reinterpret_cast<std::byte*>(&value), 8);
  EXPECT_EQ(to_2->TrySend(other), Progress::kDone);
  auto new_link = world.Connect(0, 1, 9);
  SendOperation after = SendOf(reinterpret_cast<std::byte*>(&value), 8);
  EXPECT_EQ(new_link->TrySend(after), Progress::kFailed);
}

}  // namespace
}  // namespace cohort::comm
