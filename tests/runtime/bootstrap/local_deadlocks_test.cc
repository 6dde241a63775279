// Ranks without an agent look for deadlocks. The segment says what each rank waits for and how often it has looked; the
// time is made up.
#include "cohort/runtime/bootstrap/local_deadlocks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "cohort/comm/types.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::runtime {
namespace {

using comm::CollectiveKind;

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kGroup = 5;
constexpr uint64_t kOther = 6;

class LocalDeadlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Segment::Create({.local_ranks = 3});
    ASSERT_TRUE(made.ok()) << made.status();
    made_ = *std::move(made);
    for (int rank = 0; rank < 3; ++rank) {
      auto segment = Segment::Attach(dup(made_->fd()), rank);
      ASSERT_TRUE(segment.ok()) << segment.status();
      ranks_.push_back(*std::move(segment));
    }
    watch_ = std::make_unique<LocalDeadlocks>(ranks_[0].get(), 0);
    for (const uint64_t group : {kGroup, kOther}) watch_->NoteGroup(group, {0, 1, 2});
  }

  uint64_t Call(int rank, CollectiveKind kind, int peer, uint64_t group, uint64_t sequence) {
    CallRecord record;
    record.signature.group = group;
    record.signature.epoch = 1;
    record.signature.sequence = sequence;
    record.signature.kind = static_cast<uint16_t>(kind);
    record.peer_world_rank = peer;
    record.bytes = 16;
    return box(rank).Start(record);
  }
  BlackBoxWriter& box(int rank) { return ranks_[static_cast<size_t>(rank)]->black_box(); }
  // The rank sleeps in this call, and has looked at everything so often more.
  void Wait(int rank, uint64_t ticket, int looks) {
    for (int i = 0; i < looks; ++i) {
      (void)ShowWait(ranks_[static_cast<size_t>(rank)]->control(rank), ticket, ticket, true);
    }
  }
  // The ranks of the deadlock that is seen at this time.
  std::vector<int> Look(uint64_t ms) {
    const std::vector<Deadlock> deadlocks = watch_->Look(ms * kMillisecond);
    EXPECT_LE(deadlocks.size(), 1u);
    return deadlocks.empty() ? std::vector<int>() : deadlocks[0].ranks;
  }
  // Rank 0 sends rank 1 a second message, which has no place while rank 1 has not taken the first one.
  uint64_t SendWithoutPlace() {
    box(0).Finish(Call(0, CollectiveKind::kSend, 1, kGroup, 1), CallState::kDone);
    return Call(0, CollectiveKind::kSend, 1, kGroup, 2);
  }
  // Rank 1 takes the first message, which makes room for the second, and then waits for something else of rank 0.
  uint64_t TakeAndWait() {
    box(1).Finish(Call(1, CollectiveKind::kRecv, 0, kGroup, 1), CallState::kDone);
    return Call(1, CollectiveKind::kRecv, 0, kOther, 1);
  }

  std::unique_ptr<Segment> made_;
  std::vector<std::unique_ptr<Segment>> ranks_;
  std::unique_ptr<LocalDeadlocks> watch_;
};

TEST_F(LocalDeadlocksTest, FindsTheRanksWhoseWaitsDoNotMove) {
  Wait(0, Call(0, CollectiveKind::kRecv, 1, kGroup, 1), 1);
  Wait(1, Call(1, CollectiveKind::kRecv, 0, kGroup, 1), 1);
  EXPECT_EQ(Look(100), std::vector<int>());
  Wait(0, 1, 4);
  Wait(1, 1, 4);
  EXPECT_EQ(Look(200), std::vector<int>()) << "a wait that has just begun is none";
  EXPECT_EQ(Look(300), (std::vector<int>{0, 1}));
}

// A sleeping rank has been woken by its peer, but does not run yet: what it looked at before does not count.
TEST_F(LocalDeadlocksTest, LeavesOutRanksThatHaveNotLookedSinceTheLastOneBeganToWait) {
  const uint64_t send = SendWithoutPlace();
  Wait(0, send, 5);
  EXPECT_EQ(Look(100), std::vector<int>());
  Wait(0, send, 20);
  const uint64_t receive = TakeAndWait();
  Wait(1, receive, 1);
  for (uint64_t ms = 200; ms <= 2000; ms += 100) {
    Wait(1, receive, 2);
    EXPECT_EQ(Look(ms), std::vector<int>()) << ms;
  }
}

// The send has no place still, now that both have looked: another wait holds it.
TEST_F(LocalDeadlocksTest, FindsRanksOnceTheyHaveLookedAgain) {
  const uint64_t send = SendWithoutPlace();
  Wait(0, send, 5);
  EXPECT_EQ(Look(100), std::vector<int>());
  const uint64_t receive = TakeAndWait();
  Wait(1, receive, 1);
  EXPECT_EQ(Look(200), std::vector<int>());
  Wait(1, receive, 3);
  Wait(0, send, 1);
  EXPECT_EQ(Look(400), std::vector<int>()) << "that look may have begun before";
  Wait(0, send, 1);
  EXPECT_EQ(Look(500), (std::vector<int>{0, 1}));
}

TEST_F(LocalDeadlocksTest, FindsADeadlockWhileAnotherRankMoves) {
  Wait(0, Call(0, CollectiveKind::kRecv, 1, kGroup, 1), 1);
  Wait(1, Call(1, CollectiveKind::kRecv, 0, kGroup, 1), 1);
  std::vector<int> seen;
  for (uint64_t ms = 100; ms <= 500 && seen.empty(); ms += 100) {
    Wait(2, Call(2, CollectiveKind::kRecv, 0, kOther, ms), 1);
    Wait(0, 1, 2);
    Wait(1, 1, 2);
    seen = Look(ms);
  }
  EXPECT_EQ(seen, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace cohort::runtime
