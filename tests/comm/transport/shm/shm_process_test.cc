// Links and fan-outs between real processes.
#include <gtest/gtest.h>

#include <random>

#include "tests/comm/transport/shm/forked_ranks.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::Drive;
using testing::ForkedRanks;
using testing::Pattern;
using testing::RecvOf;
using testing::SendOf;
using testing::WaitFor;

std::unique_ptr<Link> Connect(ShmTransport& transport, int peer, uint64_t group = 1) {
  auto link = transport.Connect({.group = group, .epoch = 1, .peer_world_rank = peer, .lane = 0});
  EXPECT_TRUE(link.ok()) << link.status();
  return std::move(*link);
}

// Ranks 0 and 1 send each other messages of every size at once, several times, checked by content.
void PingPong(const ForkedRanks::Child& child, ShmOptions options, bool window) {
  auto transport = child.MakeTransport(options);
  auto link = Connect(*transport, 1 - child.rank);
  std::vector<size_t> sizes = testing::EdgeSizes();
  sizes.push_back((33 << 20) + 5);
  std::byte* memory = nullptr;
  if (window) {
    auto block = child.segment.Allocate(sizes.back());
    ASSERT_TRUE(block.ok());
    memory = static_cast<std::byte*>(*child.segment.Map(*block));
  }
  for (size_t round = 0; round < 3; ++round) {
    if (round == 1) sizes.pop_back();  // the largest once
    for (size_t bytes : sizes) {
      const auto seed = [&](int rank) { return bytes + 1000 * static_cast<size_t>(rank) + round; };
      const std::vector<std::byte> mine = Pattern(bytes, seed(child.rank));
      const std::byte* source = mine.data();
      if (window && bytes > 0) source = static_cast<const std::byte*>(std::memcpy(memory, mine.data(), bytes));
      std::vector<std::byte> received(bytes);
      SendOperation send = SendOf(source, bytes);
      RecvOperation recv = RecvOf(received.data(), bytes);
      bool sent = false, taken = false;
      ASSERT_TRUE(Drive([&] {
        Progress progress = Progress::kBlocked;
        if (!sent && (progress = link->TrySend(send)) == Progress::kDone) sent = true;
        if (progress == Progress::kFailed) return progress;
        if (!taken && (progress = link->TryRecv(recv)) == Progress::kDone) taken = true;
        if (progress == Progress::kFailed) return progress;
        return sent && taken ? Progress::kDone : progress == Progress::kDone ? Progress::kMoved : progress;
      })) << bytes
          << " bytes: " << send.error << recv.error;
      ASSERT_EQ(received, Pattern(bytes, seed(1 - child.rank))) << bytes << " bytes";
    }
  }
}

TEST(ShmProcess, PrivateMemoryArrivesInAnotherProcess) {
  ForkedRanks(2, [](const auto& child) { PingPong(child, {}, false); }).ExpectAllSucceed();
}
TEST(ShmProcess, PrivateMemoryArrivesWithoutPrivateReads) {
  ForkedRanks(2, [](const auto& child) { PingPong(child, {.private_reads = false}, false); }).ExpectAllSucceed();
}
TEST(ShmProcess, PrivateMemoryArrivesWhenOneSideCannotRead) {
  ForkedRanks(2, [](const auto& child) {
    PingPong(child, {.private_reads = child.rank == 0}, false);
  }).ExpectAllSucceed();
}
TEST(ShmProcess, SegmentMemoryArrivesInAnotherProcess) {
  ForkedRanks(2, [](const auto& child) { PingPong(child, {}, true); }).ExpectAllSucceed();
}

// The kernel refuses: another user's process, not privileged, not dumpable.
TEST(ShmProcess, KernelThatRefusesPrivateReadsIsNoticed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change to a user without privileges";
  ForkedRanks(2, [](const auto& child) {
    ASSERT_EQ(setresgid(65534, 65534, 65534), 0);
    ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
    prctl(PR_SET_DUMPABLE, 0);
    PingPong(child, {}, false);
  }).ExpectAllSucceed();
}

// Flat all-reduce by hand: everyone publishes, everyone reads everyone. Fast ranks run ahead.
TEST(ShmProcess, FanoutsKeepUpWithEachOther) {
  constexpr int kRanks = 4;
  ForkedRanks(kRanks, [](const auto& child) {
    auto transport = child.MakeTransport();
    auto fanout = *transport->ConnectFanout(
        {.group = 1, .epoch = 1, .group_rank = child.rank, .world_ranks = {0, 1, 2, 3}, .lane = 0});
    std::mt19937_64 sizes(7);  // the same on all ranks
    for (uint64_t round = 0; round < 3000; ++round) {
      const size_t words = sizes() % 4 == 0 ? 1 + sizes() % 1000 : 1 + sizes() % 6;
      std::vector<uint64_t> mine(words);
      for (size_t i = 0; i < words; ++i) mine[i] = round * 1000 + i + static_cast<uint64_t>(child.rank) * 1'000'000;
      SendOperation send = SendOf(reinterpret_cast<std::byte*>(mine.data()), words * 8, round);
      ASSERT_TRUE(Drive([&] { return fanout->TryPublish(send); })) << send.error;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == child.rank) continue;
        std::vector<uint64_t> theirs(words);
        RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(theirs.data()), words * 8, round);
        ASSERT_TRUE(Drive([&] { return fanout->TryRecv(peer, recv); })) << recv.error;
        for (size_t i = 0; i < words; ++i) {
          ASSERT_EQ(theirs[i], round * 1000 + i + static_cast<uint64_t>(peer) * 1'000'000);
        }
      }
    }
  }).ExpectAllSucceed();
}

// The writer is killed in the middle of a long message: the reader waits, unharmed, until it is told of the death.
TEST(ShmProcess, KilledWriterLeavesTheReaderWaiting) {
  for (const bool private_reads : {true, false}) {
    constexpr size_t kBytes = 64 << 20;
    ForkedRanks ranks(2, [private_reads](const auto& child) {
      auto transport = child.MakeTransport({.private_reads = private_reads});
      auto link = Connect(*transport, 1 - child.rank);
      uint64_t word = 1;
      if (child.rank == 0) {
        // Both have seen each other, so that the long message takes the intended way.
        RecvOperation hello = RecvOf(reinterpret_cast<std::byte*>(&word), 8);
        ASSERT_TRUE(Drive([&] { return link->TryRecv(hello); }));
        const std::vector<std::byte> data(kBytes);
        SendOperation send = SendOf(data.data(), kBytes);
        (void)link->TrySend(send);
        child.shared.words[0].store(1);
        for (;;) pause();
      }
      std::vector<std::byte> received(kBytes);
      SendOperation hello = SendOf(reinterpret_cast<std::byte*>(&word), 8);
      RecvOperation recv = RecvOf(received.data(), kBytes);
      (void)link->TryRecv(recv);
      ASSERT_TRUE(Drive([&] { return link->TrySend(hello); }));
      ASSERT_TRUE(Drive([&] {
        const Progress progress = link->TryRecv(recv);
        return progress == Progress::kMoved ? Progress::kDone : progress;
      }));
      child.shared.words[1].store(1);
      ASSERT_TRUE(WaitFor([&] { return child.shared.words[2].load() == 1; }));
      Progress progress = Progress::kMoved;
      while (progress == Progress::kMoved) progress = link->TryRecv(recv);
      EXPECT_EQ(progress, Progress::kBlocked) << recv.error;
      transport->OnPeerLost(0, absl::UnavailableError("rank 0 killed by SIGKILL"));
      EXPECT_EQ(link->TryRecv(recv), Progress::kFailed);
      EXPECT_EQ(recv.error.code(), absl::StatusCode::kUnavailable);
    });
    ASSERT_TRUE(WaitFor([&] { return ranks.shared().words[0].load() == 1 && ranks.shared().words[1].load() == 1; }));
    ranks.Kill(0);
    ranks.Join(0);
    ranks.shared().words[2].store(1);
    EXPECT_EQ(ranks.Join(1), 0);
  }
}

}  // namespace
}  // namespace cohort::comm
