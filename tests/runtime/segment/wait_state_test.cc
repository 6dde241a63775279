#include "cohort/runtime/segment/wait_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "cohort/comm/types.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

using comm::CollectiveKind;

class WaitState : public ::testing::Test {
 protected:
  void SetUp() override {
    auto segment = Segment::Create({.local_ranks = 2});
    ASSERT_TRUE(segment.ok()) << segment.status();
    agent_ = *std::move(segment);
    auto rank = Segment::Attach(dup(agent_->fd()), 1);
    ASSERT_TRUE(rank.ok()) << rank.status();
    rank_ = *std::move(rank);
  }
  uint64_t Start(CollectiveKind kind, uint64_t group, uint64_t sequence, int peer = -1) {
    CallRecord record;
    record.signature.group = group;
    record.signature.sequence = sequence;
    record.signature.kind = static_cast<uint16_t>(kind);
    record.peer_world_rank = peer;
    return rank_->black_box().Start(record);
  }
  std::optional<Wait> Read() const { return ReadWait(agent_->control(1), agent_->black_box_of(1)); }
  CallProgress Progress() const { return ReadCallProgress(agent_->black_box_of(1)); }
  RankControl& control() { return rank_->control(1); }

  std::unique_ptr<Segment> agent_;
  std::unique_ptr<Segment> rank_;
};

TEST_F(WaitState, AWaitShowsTheCallsThatAreNotDone) {
  EXPECT_FALSE(Read().has_value());
  const uint64_t first = Start(CollectiveKind::kRecv, 5, 1, 0);
  const uint64_t last = Start(CollectiveKind::kSend, 5, 1, 0);
  rank_->black_box().Finish(first, CallState::kDone);
  const uint64_t number = ShowWait(control(), first, last, true);
  const std::optional<Wait> wait = Read();
  ASSERT_TRUE(wait.has_value());
  EXPECT_TRUE(wait->bound);
  EXPECT_EQ(wait->looks, 1u);
  ASSERT_EQ(wait->awaited.size(), 1u);
  EXPECT_EQ(wait->awaited[0].signature.kind, static_cast<uint16_t>(CollectiveKind::kSend));
  EXPECT_EQ(wait->number, number);
  HideWait(control(), number);
  EXPECT_FALSE(Read().has_value());
  EXPECT_EQ(ReadWaitNumber(agent_->control(1)).number, 0u);
}

TEST_F(WaitState, TheNumberOfAWaitStaysWhileItGoesOn) {
  ShowWait(control(), 1, 1, true);
  const WaitNumber first = ReadWaitNumber(agent_->control(1));
  ShowWait(control(), 1, 1, true);
  const WaitNumber again = ReadWaitNumber(agent_->control(1));
  EXPECT_EQ(again.number, first.number);
  EXPECT_EQ(again.looks, first.looks + 1);
  ShowWait(control(), 1, 1, false);  // it may go on now
  const WaitNumber other = ReadWaitNumber(agent_->control(1));
  EXPECT_NE(other.number, first.number);
  HideWait(control(), other.number);
  ShowWait(control(), 1, 1, false);
  EXPECT_NE(ReadWaitNumber(agent_->control(1)).number, other.number);
}

// A thread may hide its wait after another thread has become the engine's owner.
TEST_F(WaitState, HideHidesOnlyTheNamedWait) {
  const uint64_t first = ShowWait(control(), 1, 1, true);
  const uint64_t second = ShowWait(control(), 2, 2, true);
  HideWait(control(), first);
  EXPECT_EQ(ReadWaitNumber(agent_->control(1)).number, second);
  HideWait(control(), second);
  EXPECT_EQ(ReadWaitNumber(agent_->control(1)).number, 0u);
  HideWait(control(), second);
  EXPECT_GT(ShowWait(control(), 2, 2, true), second);
}

TEST_F(WaitState, ProgressIsTheLatestOfEachGroupAndDirection) {
  Start(CollectiveKind::kAllReduce, 5, 1);
  Start(CollectiveKind::kBarrier, 5, 2);
  Start(CollectiveKind::kSend, 5, 1, 0);
  rank_->black_box().Finish(Start(CollectiveKind::kRecv, 5, 9, 0), CallState::kDone);
  const CallProgress progress = Progress();
  EXPECT_FALSE(progress.forgets);
  ASSERT_EQ(progress.latest.size(), 3u);
  EXPECT_EQ(progress.latest[0].sequence, 9u);
  EXPECT_TRUE(progress.latest[0].done);
  EXPECT_EQ(progress.latest[1].peer, 0);
  EXPECT_FALSE(progress.latest[1].done);
  EXPECT_EQ(progress.latest[2].kind, 0);
  EXPECT_EQ(progress.latest[2].sequence, 2u);
  for (int i = 0; i <= kBlackBoxRecords; ++i) Start(CollectiveKind::kBarrier, 6, static_cast<uint64_t>(i) + 1);
  EXPECT_TRUE(Progress().forgets);
}

}  // namespace
}  // namespace cohort::runtime
