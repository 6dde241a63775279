// Tests how an agent describes a rank's calls, from a real black box.
#include "cohort/launcher/agent/rank/call_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "cohort/runtime/segment/segment.h"

namespace cohort::launcher {
namespace {

constexpr uint64_t kGroup = 7;

class CallStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = runtime::Segment::Create({});
    ASSERT_TRUE(created.ok()) << created.status();
    agent_ = *std::move(created);
    auto attached = runtime::Segment::Attach(dup(agent_->fd()), 0);
    ASSERT_TRUE(attached.ok()) << attached.status();
    rank_ = *std::move(attached);
  }
  void Call(uint64_t group, uint64_t sequence) {
    runtime::CallRecord record;
    record.signature.group = group;
    record.signature.epoch = 1;
    record.signature.sequence = sequence;
    record.signature.kind = 3;
    record.signature.count = 8;
    rank_->black_box().Finish(rank_->black_box().Start(record), runtime::CallState::kDone);
  }
  v1::CallState Ask(uint64_t sequence) { return InspectOperation(agent_->black_box_of(0), 2, kGroup, 1, sequence); }

  std::unique_ptr<runtime::Segment> agent_;
  std::unique_ptr<runtime::Segment> rank_;
};

TEST_F(CallStateTest, ARankThatHasNotComeToACallShowsItsLatest) {
  EXPECT_FALSE(Ask(1).present());
  Call(kGroup + 1, 30);
  EXPECT_TRUE(Ask(1).present());
  EXPECT_FALSE(Ask(1).sequence_seen());
  EXPECT_EQ(Ask(1).group(), kGroup + 1);
}

TEST_F(CallStateTest, ACallThatTheBoxHoldsHasItsSignature) {
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) Call(kGroup, sequence);
  const v1::CallState state = Ask(2);
  EXPECT_TRUE(state.sequence_seen());
  EXPECT_EQ(state.sequence(), 2u);
  EXPECT_NE(state.signature(), 0u);
  EXPECT_EQ(state.rank(), 2u);
}

TEST_F(CallStateTest, ACallThatTheBoxHasForgottenIsSeenWithoutASignature) {
  for (uint64_t sequence = 1; sequence <= runtime::kBlackBoxRecords + 10; ++sequence) Call(kGroup, sequence);
  const v1::CallState state = Ask(2);
  EXPECT_TRUE(state.present());
  EXPECT_TRUE(state.sequence_seen());
  EXPECT_EQ(state.signature(), 0u);
  EXPECT_FALSE(Ask(runtime::kBlackBoxRecords + 11).sequence_seen());
  for (uint64_t sequence = 1; sequence <= runtime::kBlackBoxRecords; ++sequence) Call(kGroup + 1, sequence);
  EXPECT_TRUE(Ask(runtime::kBlackBoxRecords + 10).sequence_seen());
  EXPECT_EQ(Ask(runtime::kBlackBoxRecords + 10).signature(), 0u);
}

}  // namespace
}  // namespace cohort::launcher
