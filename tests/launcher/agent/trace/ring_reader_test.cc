#include "cohort/launcher/agent/trace/ring_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cohort/runtime/segment/layout.h"
#include "tests/launcher/agent/trace/traced_call.h"

namespace cohort::launcher {
namespace {

using runtime::CallRecord;
using runtime::CallState;

class RingReaderTest : public ::testing::Test {
 protected:
  static constexpr size_t kAll = 1u << 20;
  uint64_t Read(size_t most = kAll) { return reader_.Read(box_, most, on_call_); }
  uint64_t Finish() { return reader_.Finish(box_, on_call_); }

  const std::unique_ptr<runtime::BlackBoxMemory> memory_ = std::make_unique<runtime::BlackBoxMemory>();
  runtime::BlackBoxWriter writer_{memory_.get()};
  const runtime::BlackBoxReader box_{memory_.get()};
  TracedRank rank_{&writer_};
  RingReader reader_{0};
  std::vector<CallRecord> calls_;
  const RingReader::OnCall on_call_ = [this](const CallRecord& call, const runtime::CallService&) {
    calls_.push_back(call);
  };
};

TEST_F(RingReaderTest, GivesEachCallOnce) {
  rank_.Call(3);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(calls_.size(), 3u);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(calls_.size(), 3u);
  rank_.Call(2);
  EXPECT_EQ(Read(), 0u);
  ASSERT_EQ(calls_.size(), 5u);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(calls_[i].signature.sequence, i + 1);
}

TEST_F(RingReaderTest, BeginsAfterTheGivenCall) {
  rank_.Call(3);
  reader_ = RingReader(2);
  EXPECT_EQ(Read(), 0u);
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(calls_[0].signature.sequence, 3u);
}

TEST_F(RingReaderTest, GivesACallWhenItHasEnded) {
  const uint64_t ticket = rank_.Start();
  rank_.Call();
  EXPECT_EQ(Read(), 0u);
  ASSERT_EQ(calls_.size(), 1u);
  rank_.Finish(ticket);
  EXPECT_EQ(Read(), 0u);
  ASSERT_EQ(calls_.size(), 2u);
  EXPECT_EQ(calls_[1].signature.sequence, 1u);
}

TEST_F(RingReaderTest, TellsOfACallThatGoesOnAgainWhenItsTimeHasDoubled) {
  const uint64_t ticket = rank_.Start();
  rank_.Call();
  EXPECT_EQ(Read(), 0u);
  calls_.clear();
  const uint64_t start_ns = box_.At(ticket)->start_ns;
  const auto tell = [&](uint64_t halves) {
    reader_.TellOpen(box_, start_ns + halves * RingReader::kOpenForNs, on_call_);
    return calls_.size();
  };
  EXPECT_EQ(tell(0), 0u);
  EXPECT_EQ(tell(1), 1u);
  EXPECT_EQ(tell(1), 1u);
  EXPECT_EQ(tell(2), 2u);
  EXPECT_EQ(tell(3), 2u);
  EXPECT_EQ(tell(4), 3u);
  EXPECT_EQ(calls_[0].state, CallState::kStarted);
  EXPECT_EQ(calls_[0].signature.sequence, 1u);
  rank_.Finish(ticket);
  EXPECT_EQ(tell(8), 3u);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(calls_.size(), 4u);
}

TEST_F(RingReaderTest, CountsWhatWasOverwritten) {
  rank_.Call(runtime::kBlackBoxRecords + 100);
  EXPECT_EQ(Read(), 100u);
  EXPECT_EQ(calls_.size(), static_cast<size_t>(runtime::kBlackBoxRecords));
  EXPECT_EQ(calls_[0].signature.sequence, 101u);
}

TEST_F(RingReaderTest, CountsACallThatWasOverwrittenWhileItRan) {
  (void)rank_.Start();
  EXPECT_EQ(Read(), 0u);
  rank_.Call(runtime::kBlackBoxRecords - 1);
  EXPECT_EQ(Read(), 0u);  // it is still there
  rank_.Call();
  EXPECT_EQ(Read(), 1u);
  EXPECT_EQ(calls_.size(), static_cast<size_t>(runtime::kBlackBoxRecords));
}

TEST_F(RingReaderTest, LooksAtNoMoreThanItMay) {
  rank_.Call(10);
  EXPECT_EQ(Read(4), 0u);
  EXPECT_EQ(calls_.size(), 4u);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(calls_.size(), 10u);
}

TEST_F(RingReaderTest, GivesCallsThatHaveNotEndedAtTheLast) {
  (void)rank_.Start();
  EXPECT_EQ(Finish(), 0u);
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(calls_[0].state, CallState::kStarted);
}

// As by a death between the two stores that enclose a record's end.
TEST_F(RingReaderTest, CountsARecordTornByDeath) {
  rank_.Call(2);
  const uint64_t torn = rank_.Start();
  memory_->slots[torn % runtime::kBlackBoxRecords].version.store(4 * torn + 3);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(calls_.size(), 2u);
  EXPECT_EQ(Finish(), 1u);
  EXPECT_EQ(calls_.size(), 2u);
}

TEST_F(RingReaderTest, SurvivesARingThatMeansNothing) {
  rank_.Call(3);
  EXPECT_EQ(Read(), 0u);
  for (const uint64_t latest : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{2}}) {
    memory_->tickets.store(latest);
    (void)Read();
  }
  (void)Finish();
  SUCCEED();
}

TEST_F(RingReaderTest, MissesNothingSilentlyBesideARankThatWrites) {
  constexpr int kCalls = 200'000;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    rank_.Call(kCalls);
    done = true;
  });
  uint64_t missed = 0;
  while (!done) missed += Read();
  writer.join();
  missed += Finish();
  EXPECT_EQ(calls_.size() + missed, static_cast<size_t>(kCalls));
  for (size_t i = 1; i < calls_.size(); ++i) {
    ASSERT_NE(calls_[i].signature.sequence, calls_[i - 1].signature.sequence);
    ASSERT_EQ(calls_[i].state, CallState::kDone);
    ASSERT_GE(calls_[i].end_ns, calls_[i].start_ns);
  }
}

}  // namespace
}  // namespace cohort::launcher
