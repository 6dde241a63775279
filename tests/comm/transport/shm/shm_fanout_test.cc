// Fan-outs: every member reads what one publishes, in order, at its own pace.
#include <gtest/gtest.h>

#include <random>

#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::kSignature;
using testing::LocalWorld;
using testing::Pattern;
using testing::RecvOf;
using testing::SendOf;

class ShmFanoutTest : public ::testing::TestWithParam<int> {
 protected:
  ShmFanoutTest() : world_(GetParam()) {
    for (int rank = 0; rank < GetParam(); ++rank) fanouts_.push_back(world_.ConnectFanout(rank, GetParam()));
  }
  LocalWorld world_;
  std::vector<std::unique_ptr<Fanout>> fanouts_;
};

TEST_P(ShmFanoutTest, AllMembersPublishAndReadEverySize) {
  const auto size = static_cast<size_t>(GetParam());
  for (size_t bytes : testing::EdgeSizes()) {
    if (bytes > fanouts_[0]->max_bytes()) continue;
    for (int round = 0; round < 80; ++round) {
      std::vector<std::vector<std::byte>> data(size);
      std::vector<SendOperation> sends(size);
      std::vector<size_t> posted;
      for (size_t rank = 0; rank < size; ++rank) {
        data[rank] = Pattern(bytes, rank * 1000 + static_cast<size_t>(round));
        sends[rank] = SendOf(data[rank].data(), bytes);
        const Progress progress = fanouts_[rank]->TryPublish(sends[rank]);
        ASSERT_TRUE(progress == Progress::kDone || progress == Progress::kMoved) << sends[rank].error;
        if (progress == Progress::kMoved) posted.push_back(rank);
      }
      for (size_t rank = 0; rank < size; ++rank) {
        for (size_t peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          std::vector<std::byte> received(bytes);
          RecvOperation recv = RecvOf(received.data(), bytes);
          ASSERT_EQ(fanouts_[rank]->TryRecv(static_cast<int32_t>(peer), recv), Progress::kDone) << recv.error;
          ASSERT_EQ(received, data[peer]);
        }
      }
      // Publishes that the readers fetched themselves are done by now.
      for (const size_t rank : posted) {
        ASSERT_EQ(fanouts_[rank]->TryPublish(sends[rank]), Progress::kDone) << bytes << sends[rank].error;
      }
    }
  }
}

// A broadcast: only one publishes. Readers run at random speeds; the writer must not overwrite what one still needs.
TEST_P(ShmFanoutTest, AWriterWaitsForItsSlowestReader) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto size = static_cast<size_t>(GetParam());
  const std::vector<size_t> sizes = {0, 8, 48, 49, 700, 4000, 8192};
  constexpr size_t kMessages = 500;
  std::vector<std::vector<std::byte>> data;
  for (size_t i = 0; i < kMessages; ++i) data.push_back(Pattern(sizes[random() % sizes.size()], i));

  size_t sent = 0;
  SendOperation send = SendOf(data[0].data(), data[0].size());
  std::vector<size_t> read(size);
  std::vector<std::vector<std::byte>> received(size);
  std::vector<RecvOperation> recvs(size);
  size_t left = (size - 1) * kMessages;
  const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
  while (left > 0) {
    ASSERT_FALSE(deadline.passed());
    const size_t rank = random() % size;
    if (rank == 0) {
      if (sent == kMessages || fanouts_[0]->TryPublish(send) != Progress::kDone) continue;
      if (++sent < kMessages) send = SendOf(data[sent].data(), data[sent].size());
      continue;
    }
    // One rank is slow.
    if (read[rank] == kMessages || (rank == 1 && random() % 20 != 0)) continue;
    const std::vector<std::byte>& expected = data[read[rank]];
    if (recvs[rank].state == nullptr) {
      received[rank].assign(expected.size(), std::byte{});
      recvs[rank] = RecvOf(received[rank].data(), expected.size());
    }
    const Progress progress = fanouts_[rank]->TryRecv(0, recvs[rank]);
    ASSERT_NE(progress, Progress::kFailed) << recvs[rank].error;
    if (progress != Progress::kDone) continue;
    ASSERT_EQ(received[rank], expected);
    recvs[rank] = RecvOperation();
    ++read[rank];
    --left;
  }
}

// Ranks that share CPUs copy it instead: a confirmation may cost a turn.
TEST_P(ShmFanoutTest, SegmentMemoryIsReadInPlace) {
  const auto size = static_cast<size_t>(GetParam());
  std::byte* window = world_.Window(0, 8192);
  const std::vector<std::byte> data = Pattern(8192, 4);
  std::memcpy(window, data.data(), 8192);
  SendOperation send = SendOf(window, 8192);
  const bool copied = GetParam() > world_.segment(0).cpus();
  if (copied) {
    ASSERT_EQ(fanouts_[0]->TryPublish(send), Progress::kDone);
    std::memset(window, 0, 8192);
  }
  for (size_t rank = 1; rank < size; ++rank) {
    if (!copied) {
      ASSERT_NE(fanouts_[0]->TryPublish(send), Progress::kDone) << "before rank " << rank << " has read";
    }
    std::vector<std::byte> received(8192);
    RecvOperation recv = RecvOf(received.data(), 8192);
    ASSERT_EQ(fanouts_[rank]->TryRecv(0, recv), Progress::kDone);
    ASSERT_EQ(received, data);
  }
  if (!copied) {
    EXPECT_EQ(fanouts_[0]->TryPublish(send), Progress::kDone);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmFanoutTest, ::testing::Values(2, 3, 8));

TEST(ShmFanout, GroupOfOneHasNobodyToWaitFor) {
  LocalWorld world(1);
  auto fanout = world.ConnectFanout(0, 1);
  for (int i = 0; i < 1000; ++i) {
    uint64_t value = 1;
    SendOperation send = SendOf(reinterpret_cast<std::byte*>(&value), 8);
    ASSERT_EQ(fanout->TryPublish(send), Progress::kDone);
    const std::vector<std::byte> longer(4096);
    send = SendOf(longer.data(), longer.size());
    ASSERT_EQ(fanout->TryPublish(send), Progress::kDone);
  }
}

TEST(ShmFanout, MembersElsewhereAreNotServed) {
  LocalWorld world(2);
  FanoutSpec spec{.group = 1, .epoch = 1, .group_rank = 0, .world_ranks = {0, 1, 2}, .lane = 0};
  EXPECT_EQ(world.transport(0).ConnectFanout(spec).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ShmFanout, AMessageThatIsTooLongIsRefused) {
  LocalWorld world(2);
  auto fanout = world.ConnectFanout(0, 2);
  const std::vector<std::byte> data(fanout->max_bytes() + 1);
  SendOperation send = SendOf(data.data(), data.size());
  EXPECT_EQ(fanout->TryPublish(send), Progress::kFailed);
  EXPECT_EQ(send.error.code(), absl::StatusCode::kInternal);
}

TEST(ShmFanout, ALostMemberFailsTheFanout) {
  LocalWorld world(3);
  auto fanout = world.ConnectFanout(0, 3);
  world.transport(0).OnPeerLost(2, absl::UnavailableError("gone"));
  uint64_t value = 0;
  RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(&value), 8);
  EXPECT_EQ(fanout->TryRecv(1, recv), Progress::kFailed);
}

}  // namespace
}  // namespace cohort::comm
