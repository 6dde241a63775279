#include "cohort/launcher/agent/trace/node_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/ranges/range_ring.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"
#include "tests/launcher/agent/trace/traced_call.h"

namespace cohort::launcher {
namespace {

class NodeTraceTest : public ::testing::Test {
 protected:
  NodeTraceTest() {
    auto created = runtime::Segment::Create({});
    EXPECT_TRUE(created.ok()) << created.status();
    segment_ = *std::move(created);
    auto attached = runtime::Segment::Attach(::dup(segment_->fd()), 0);
    EXPECT_TRUE(attached.ok()) << attached.status();
    attached_ = *std::move(attached);
    rank_.emplace(&attached_->black_box());
  }
  void Order(bool on, bool past = false) {
    v1::TraceOrder order;
    order.set_past(past);
    order.set_number(7);
    order.set_on(on);
    trace_.Obey(order);
  }
  // All that was sent.
  v1::RankCalls Sent() const {
    v1::RankCalls all;
    for (const v1::NodeTrace& trace : sent_) {
      EXPECT_EQ(trace.number(), 7u);
      EXPECT_NE(trace.steady_ns(), 0u);
      if (trace.calls().empty()) continue;
      v1::TracedCalls calls;
      EXPECT_TRUE(calls.ParseFromString(runtime::Uncompress(trace.calls(), 1u << 20).value_or("?")));
      for (const v1::RankCalls& rank : calls.ranks()) all.MergeFrom(rank);
    }
    return all;
  }
  void AddRange(const char* name, uint64_t number, runtime::RangeLane lane) {
    runtime::RangeRecord record;
    record.set_name(name);
    record.number = number;
    record.lane = lane;
    record.start_ns = 100;
    record.end_ns = 105;
    runtime::AddRange(runtime::RangesOf(*attached_, 0), record);
  }
  v1::RankRanges SentRanges() const {
    v1::RankRanges all;
    for (const v1::NodeTrace& trace : sent_) {
      if (trace.calls().empty()) continue;
      v1::TracedRanges ranges;
      EXPECT_TRUE(ranges.ParseFromString(runtime::Uncompress(trace.calls(), 1u << 20).value_or("?")));
      for (const v1::RankRanges& rank : ranges.ranges()) all.MergeFrom(rank);
    }
    return all;
  }
  void RunUntil(const std::function<bool()>& condition) {
    const auto limit = EventLoop::Clock::now() + std::chrono::seconds(20);
    std::function<void()> look = [&] {
      if (condition() || EventLoop::Clock::now() > limit) return loop_.Quit();
      loop_.After(std::chrono::milliseconds(2), look);
    };
    look();
    loop_.Run();
    EXPECT_TRUE(condition());
  }

  EventLoop loop_;
  std::unique_ptr<runtime::Segment> segment_, attached_;  // the agent's and the rank's
  std::optional<TracedRank> rank_;
  bool full_ = false;
  bool watches_states_ = false;
  google::protobuf::RepeatedPtrField<v1::RankStates> states_;  // are sent each time
  std::vector<v1::NodeTrace> sent_;
  NodeTrace trace_{&loop_,
                   {3},
                   {.segment_of = [this](int) -> runtime::Segment& { return *segment_; },
                    .full = [this] { return full_; },
                    .send = [this](v1::NodeTrace trace) { sent_.push_back(std::move(trace)); },
                    .watch_states = [this](bool on) { watches_states_ = on; },
                    .add_states = [this](v1::TracedCalls* calls) { calls->mutable_states()->MergeFrom(states_); }}};
};

TEST_F(NodeTraceTest, SendsTheCallsOfRanks) {
  Order(true);
  ASSERT_EQ(sent_.size(), 1u);  // the clocks, at once
  trace_.OnJoin(0);
  rank_->Call(5);
  RunUntil([this] { return Sent().sequence_size() == 5; });
  Order(false);
  EXPECT_TRUE(sent_.back().last());
  const v1::RankCalls calls = Sent();
  EXPECT_EQ(calls.rank(), 3u);
  EXPECT_EQ(calls.missed(), 0u);
  ASSERT_EQ(calls.shapes_size(), 1);
  EXPECT_EQ(calls.shapes(0).call(), "all_reduce(sum, float32, 1024)");
  EXPECT_EQ(calls.shapes(0).site(), "train.cc:88");
  EXPECT_EQ(calls.shapes(0).bytes(), 4096u);
  EXPECT_EQ(calls.shapes(0).algorithm(), "ring");
  EXPECT_EQ(calls.shapes(0).transports(), "shm");
}

TEST_F(NodeTraceTest, TellsOfACallThatGoesOnWhileTheTraceIsTaken) {
  Order(true);
  trace_.OnJoin(0);
  const uint64_t ticket = rank_->Start();
  RunUntil([this] { return Sent().open_size() > 0; });
  const v1::OpenCall open = Sent().open(0);
  EXPECT_EQ(open.sequence(), 1u);
  EXPECT_EQ(open.shape(), 0u);
  EXPECT_GE(open.seen_ns() - open.start_ns(), RingReader::kOpenForNs);
  EXPECT_EQ(Sent().sequence_size(), 0);
  rank_->Finish(ticket);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), 1);
}

TEST_F(NodeTraceTest, BeginsWithTheCallsAfterTheOrder) {
  trace_.OnJoin(0);
  rank_->Call(5);
  Order(true);
  rank_->Call(2);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), 2);
}

TEST_F(NodeTraceTest, BeginsWithTheCallsThatTheRingsHoldIfAsked) {
  trace_.OnJoin(0);
  rank_->Call(5);
  Order(true, /*past=*/true);
  rank_->Call(2);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), 7);
  EXPECT_EQ(Sent().missed(), 0u);
}

TEST_F(NodeTraceTest, ThePastIsAsLongAsTheRing) {
  trace_.OnJoin(0);
  rank_->Call(600);
  Order(true, /*past=*/true);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), runtime::kBlackBoxRecords);
  EXPECT_EQ(Sent().missed(), 0u);
}

TEST_F(NodeTraceTest, StatesAreWatchedWhileThereIsATraceAndSentWithTheCalls) {
  EXPECT_FALSE(watches_states_);
  Order(true);
  EXPECT_TRUE(watches_states_);
  states_.Add()->set_rank(3);
  Order(false);
  EXPECT_FALSE(watches_states_);
  v1::TracedCalls calls;
  ASSERT_TRUE(calls.ParseFromString(runtime::Uncompress(sent_.back().calls(), 1u << 20).value_or("?")));
  ASSERT_EQ(calls.states_size(), 1);
  EXPECT_EQ(calls.states(0).rank(), 3u);
}

TEST_F(NodeTraceTest, ReadsTheRestOfARankThatLeaves) {
  Order(true);
  trace_.OnJoin(0);
  rank_->Call(5);
  const uint64_t torn = rank_->Start();
  trace_.OnLeave(0);
  EXPECT_EQ(Sent().sequence_size(), 6);
  EXPECT_EQ(Sent().state(5), static_cast<uint32_t>(runtime::CallState::kStarted));
  rank_->Finish(torn);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), 6);
}

TEST_F(NodeTraceTest, CountsWhatItCouldNotSend) {
  Order(true);
  trace_.OnJoin(0);
  full_ = true;
  rank_->Call(600);
  Order(false);
  EXPECT_EQ(Sent().sequence_size(), runtime::kBlackBoxRecords);
  EXPECT_EQ(Sent().missed(), 600u - runtime::kBlackBoxRecords);
}

TEST_F(NodeTraceTest, RanksRecordRangesWhileThereIsATrace) {
  runtime::RangeMemory& ring = *runtime::RangesOf(*attached_, 0);
  trace_.OnJoin(0);
  EXPECT_EQ(ring.wanted.load(), 0u);
  AddRange("before", 9, runtime::RangeLane::kProgram);
  Order(true);
  EXPECT_EQ(ring.wanted.load(), 1u);
  AddRange("load", 10, runtime::RangeLane::kProgram);
  AddRange("load", 11, runtime::RangeLane::kPasses);
  AddRange("", 12, runtime::RangeLane::kSteps);
  Order(false);
  EXPECT_EQ(ring.wanted.load(), 0u);
  const v1::RankRanges ranges = SentRanges();
  EXPECT_EQ(ranges.rank(), 3u);
  EXPECT_EQ(ranges.missed(), 0u);
  ASSERT_EQ(ranges.name_size(), 3);
  EXPECT_EQ(ranges.names(static_cast<int>(ranges.name(1))), "load");
  EXPECT_EQ(ranges.name(0), ranges.name(1));
  EXPECT_EQ(ranges.lane(1), static_cast<uint32_t>(runtime::RangeLane::kPasses));
  EXPECT_EQ(ranges.number(2), 12u);
  EXPECT_EQ(ranges.length_ns(0), 5u);
}

TEST_F(NodeTraceTest, StepsOfThePastAreSentIfAsked) {
  trace_.OnJoin(0);
  for (uint64_t i = 0; i < runtime::kRangeRecords + 9; ++i) AddRange("", i, runtime::RangeLane::kSteps);
  Order(true, /*past=*/true);
  Order(false);
  EXPECT_EQ(SentRanges().name_size(), static_cast<int>(runtime::kRangeRecords));
  EXPECT_EQ(SentRanges().missed(), 0u);
}

TEST_F(NodeTraceTest, CountsRangesThatItCouldNotSend) {
  Order(true);
  trace_.OnJoin(0);
  full_ = true;
  for (uint64_t i = 0; i < runtime::kRangeRecords + 9; ++i) AddRange("x", i, runtime::RangeLane::kProgram);
  trace_.OnLeave(0);
  EXPECT_EQ(SentRanges().name_size(), static_cast<int>(runtime::kRangeRecords));
  EXPECT_EQ(SentRanges().missed(), 9u);
}

TEST_F(NodeTraceTest, AnswersAnOrderThatChangesNothing) {
  Order(false);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].last());
}

}  // namespace
}  // namespace cohort::launcher
