// A process that only records its calls for a rank, and one that joins as that rank.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

#include "cohort/runtime/process/owner_word.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"
#include "tests/launcher/agent/rank/served_ranks.h"

namespace cohort::launcher {
namespace {

TEST_F(RankServiceTest, ARecorderGivesWayToAProcessThatJoins) {
  Client recorder(address_);
  recorder.SayThatItRecords(0);
  ASSERT_TRUE(recorder.Receive().has_welcome());
  const auto recorded = runtime::Segment::Attach(recorder.segment().Release(), 0, runtime::Segment::Role::kRecorder);
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  EXPECT_EQ(Get(&recorder, "key", 1).value(), "value of key");
  Client another(address_);
  another.SayThatItRecords(0);
  const v1::AgentMessage refusal = another.Receive();
  EXPECT_TRUE(refusal.has_refused() && refusal.refused().empty()) << refusal.ShortDebugString();
  Client rank(address_);
  rank.SayHello(0);
  ASSERT_TRUE(rank.Receive().has_welcome());
  EXPECT_EQ(recorder.Receive().kind_case(), v1::AgentMessage::KIND_NOT_SET) << "its connection has ended";
  const auto segment = runtime::Segment::Attach(rank.segment().Release(), 0);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->epoch(), (*recorded)->epoch()) << "it writes on where the recorder has ended";
  Client late(address_);
  late.SayThatItRecords(0);
  const v1::AgentMessage late_refusal = late.Receive();
  EXPECT_TRUE(late_refusal.has_refused() && late_refusal.refused().empty());
  EXPECT_EQ(Get(&rank, "key", 2).value(), "value of key");
  EXPECT_EQ(recorded_, 1);
  EXPECT_EQ(hellos_, 1);
  EXPECT_EQ(vanished_, 0);
}

TEST_F(RankServiceTest, ARecorderGoesOnBehindARuntimeThatHasFinalized) {
  Client rank(address_);
  rank.SayHello(0);
  ASSERT_TRUE(rank.Receive().has_welcome());
  const auto segment = runtime::Segment::Attach(rank.segment().Release(), 0);
  ASSERT_TRUE(segment.ok()) << segment.status();
  (*segment)->black_box().Start({});
  (*segment)->control(0).state.store(runtime::kRankFinalised);
  v1::RankMessage goodbye;
  goodbye.mutable_goodbye();
  rank.Send(goodbye);
  Client recorder(address_);
  recorder.SayThatItRecords(0);
  ASSERT_TRUE(recorder.Receive().has_welcome());
  const auto recorded = runtime::Segment::Attach(recorder.segment().Release(), 0, runtime::Segment::Role::kRecorder);
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  EXPECT_EQ((*recorded)->epoch(), (*segment)->epoch());
  const runtime::OwnerWord owner(&runtime::RankPartOf(recorded->get(), 0)->black_box.owner);
  const std::optional<uint64_t> number = owner.ClaimSince(owner.Look());
  ASSERT_TRUE(number.has_value());
  runtime::BlackBoxWriter(&runtime::RankPartOf(recorded->get(), 0)->black_box).Start({});
  EXPECT_EQ((*segment)->black_box_of(0).latest(), 2u) << "what the runtime had called is still there";
  Client again(address_);
  again.SayHello(0);
  ASSERT_TRUE(again.Receive().has_welcome());
  const auto next = runtime::Segment::Attach(again.segment().Release(), 0);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(runtime::ReopenedOf((*next)->epoch()), 1u);
  EXPECT_FALSE(owner.Is(*number)) << "the rank has gone on to another segment";
}

TEST_F(RankServiceTest, NewsForARuntimeAreKeptWhileTheRankIsOnlyRecorded) {
  v1::GroupFailure failure;
  failure.set_group(7);
  failure.mutable_members()->set_everyone(true);
  failure.set_from_rank(2);
  const auto happen = [&] {
    std::atomic<bool> done{false};
    loop_.Post([&] {
      service_->OnGroupFailure(failure);
      done = true;
    });
    while (!done) std::this_thread::yield();
  };
  happen();  // before the recorder comes
  Client recorder(address_);
  recorder.SayThatItRecords(0);
  ASSERT_TRUE(recorder.Receive().has_welcome());
  failure.set_group(8);
  happen();  // and beside it
  Client rank(address_);
  rank.SayHello(0);
  ASSERT_TRUE(rank.Receive().has_welcome());
  EXPECT_EQ(rank.Receive().group_failure().group(), 7u);
  EXPECT_EQ(rank.Receive().group_failure().group(), 8u);
}

TEST_F(RankServiceTest, TheEndOfARecorderIsNoNewsAndAnotherMayFollow) {
  for (int i = 1; i <= 2; ++i) {
    Client recorder(address_);
    recorder.SayThatItRecords(0);
    ASSERT_TRUE(recorder.Receive().has_welcome());
    EXPECT_EQ(recorded_, i);
  }
  Client stranger(address_);
  stranger.SayHello(0, 99, /*records=*/true);
  EXPECT_NE(stranger.Receive().refused().find("version 99"), std::string::npos);
  EXPECT_EQ(vanished_, 0);
  EXPECT_EQ(hellos_, 0);
}

}  // namespace
}  // namespace cohort::launcher
