#include "cohort/runtime/segment/black_box.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

class BlackBoxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Segment::Create({});
    ASSERT_TRUE(created.ok()) << created.status();
    agent_ = *std::move(created);
    auto attached = Segment::Attach(dup(agent_->fd()), 0);
    ASSERT_TRUE(attached.ok()) << attached.status();
    rank_ = *std::move(attached);
  }

  static CallRecord Record(uint64_t group, uint64_t sequence, const std::string& site = "train.cc:88") {
    CallRecord record;
    record.signature.group = group;
    record.signature.epoch = 1;
    record.signature.sequence = sequence;
    record.signature.kind = 3;
    record.signature.dtype = 11;
    record.signature.op = 1;
    record.signature.count = 1024;
    std::strncpy(record.site, site.c_str(), sizeof record.site - 1);
    return record;
  }

  std::unique_ptr<Segment> agent_;
  std::unique_ptr<Segment> rank_;
};

TEST_F(BlackBoxTest, RemembersTheLatestCalls) {
  BlackBoxWriter& writer = rank_->black_box();
  const BlackBoxReader reader = agent_->black_box_of(0);
  EXPECT_FALSE(reader.Latest().has_value());
  EXPECT_TRUE(reader.All().empty());

  const uint64_t before = SteadyNow();
  const uint64_t ticket = writer.Start(Record(5, 1, std::string(200, 'x')));
  auto latest = reader.Latest();
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(latest->state, CallState::kStarted);
  EXPECT_EQ(std::string(latest->site), std::string(sizeof latest->site - 1, 'x'));
  EXPECT_GE(latest->start_ns + 100'000, before);
  EXPECT_EQ(latest->end_ns, 0u);
  writer.Finish(ticket, CallState::kDone);
  latest = reader.Latest();
  EXPECT_EQ(latest->state, CallState::kDone);
  EXPECT_GE(latest->end_ns + 100'000, latest->start_ns);

  for (uint64_t sequence = 2; sequence <= 2 * kBlackBoxRecords; ++sequence) writer.Start(Record(5, sequence));
  writer.Finish(ticket, CallState::kFailed);  // overwritten since: left alone
  EXPECT_EQ(reader.All().size(), static_cast<size_t>(kBlackBoxRecords));
  EXPECT_EQ(reader.All().front().signature.sequence, static_cast<uint64_t>(kBlackBoxRecords + 1));
  EXPECT_EQ(reader.Latest()->signature.sequence, static_cast<uint64_t>(2 * kBlackBoxRecords));
  EXPECT_EQ(std::string(reader.Latest()->site), "train.cc:88");
  EXPECT_FALSE(reader.Find(5, 1, 1).has_value());
  EXPECT_TRUE(reader.Find(5, 1, kBlackBoxRecords + 1).has_value());
  EXPECT_FALSE(reader.Find(6, 1, kBlackBoxRecords + 1).has_value());
  EXPECT_FALSE(reader.Find(5, 2, kBlackBoxRecords + 1).has_value());
  EXPECT_EQ(reader.Reached(5, 1, 1), true);
  EXPECT_EQ(reader.Reached(5, 1, 2 * kBlackBoxRecords), true);
  EXPECT_EQ(reader.Reached(5, 1, 2 * kBlackBoxRecords + 1), false);
  EXPECT_EQ(reader.Reached(6, 1, 1), false);  // a group that was never used
  EXPECT_EQ(reader.Reached(5, 2, 1), false);
  for (uint64_t sequence = 1; sequence <= kBlackBoxRecords; ++sequence) writer.Start(Record(6, sequence));
  EXPECT_EQ(reader.Reached(5, 1, 2 * kBlackBoxRecords + 1), std::nullopt);  // it may have been forgotten
}

TEST_F(BlackBoxTest, KnowsGroupsThatWereNeverUsed) {
  BlackBoxWriter& writer = rank_->black_box();
  const BlackBoxReader reader = agent_->black_box_of(0);
  const auto id = [](uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; };
  constexpr uint64_t kUsed = 3400;
  for (uint64_t i = 0; i < kUsed; ++i) writer.Start(Record(id(i), 1));
  int taken_for_used = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    if (i < kUsed) {
      EXPECT_NE(reader.Reached(id(i), 1, 1), false) << i;
    } else {
      taken_for_used += reader.Reached(id(i), 1, 1) != false ? 1 : 0;
    }
  }
  EXPECT_LT(taken_for_used, 200);  // one in a hundred of 6,600
}

TEST_F(BlackBoxTest, RepeatedCallsShareADescription) {
  BlackBoxWriter& writer = rank_->black_box();
  const BlackBoxReader reader = agent_->black_box_of(0);
  CallDescription first;
  CallDescription second;
  writer.Start(Record(5, 1, "first.cc:1"), &first);
  const uint64_t id = first.id;
  EXPECT_NE(id, 0u);
  CallRecord again = Record(5, 2, "first.cc:1");
  again.wire_signature = 77;
  writer.Finish(writer.Start(again, &first), CallState::kDone);
  EXPECT_EQ(first.id, id);
  EXPECT_EQ(reader.Latest()->wire_signature, 77u);
  EXPECT_EQ(reader.Latest()->state, CallState::kDone);
  EXPECT_EQ(reader.Latest()->signature.count, 1024u);

  // However many others come, the box forgets none that one of its records needs, and a forgotten one is made again.
  for (uint64_t sequence = 3; sequence < 5 * kBlackBoxRecords; ++sequence) {
    if (sequence % 500 == 0) {
      writer.Start(Record(5, sequence, "first.cc:1"), &first);
    } else if (sequence % 3 == 0) {
      writer.Start(Record(5, sequence, "second.cc:2"), &second);
    } else {
      writer.Start(Record(5, sequence, std::to_string(sequence)));
    }
  }
  const std::vector<CallRecord> records = reader.All();
  ASSERT_EQ(records.size(), static_cast<size_t>(kBlackBoxRecords));
  for (const CallRecord& record : records) {
    const uint64_t sequence = record.signature.sequence;
    const std::string rest = sequence % 3 == 0 ? "second.cc:2" : std::to_string(sequence);
    EXPECT_EQ(std::string(record.site), sequence % 500 == 0 ? "first.cc:1" : rest);
  }
  CallDescription rare;
  writer.Start(Record(5, 1, "rare.cc:3"), &rare);
  for (uint64_t sequence = 0; sequence < 3 * kBlackBoxRecords; ++sequence) writer.Start(Record(6, sequence));
  const uint64_t forgotten = rare.id;
  writer.Start(Record(5, 2, "rare.cc:3"), &rare);
  EXPECT_NE(rare.id, forgotten);
  EXPECT_EQ(std::string(reader.Latest()->site), "rare.cc:3");
}

TEST_F(BlackBoxTest, ARecordMayHoldItsResult) {
  BlackBoxWriter& writer = rank_->black_box();
  const BlackBoxReader reader = agent_->black_box_of(0);
  const uint64_t ticket = writer.Start(Record(5, 1));
  EXPECT_EQ(reader.Latest()->result, 0u);
  writer.FinishWithResult(ticket, 0xfedcba98u);
  EXPECT_EQ(reader.Latest()->state, CallState::kDone);
  EXPECT_EQ(reader.Latest()->result, 0xfedcba98u);
  EXPECT_GE(reader.Latest()->end_ns, reader.Latest()->start_ns);
  writer.Finish(writer.Start(Record(5, 2)), CallState::kDone);
  EXPECT_EQ(reader.Latest()->result, 0u);
  EXPECT_EQ(reader.Find(5, 1, 1)->result, 0xfedcba98u);
}

TEST_F(BlackBoxTest, ARecordSaysHowItsCallIsServed) {
  BlackBoxWriter& writer = rank_->black_box();
  const BlackBoxReader reader = agent_->black_box_of(0);
  CallDescription ring;
  std::strncpy(ring.service.algorithm, "ring", sizeof ring.service.algorithm - 1);
  ring.service.transports = static_cast<uint16_t>(TransportBit("tcp") | TransportBit("shm"));
  const uint64_t first = writer.Start(Record(5, 1), &ring);
  const uint64_t plain = writer.Start(Record(5, 2));
  const uint64_t again = writer.Start(Record(5, 3), &ring);
  CallService service;
  for (const uint64_t ticket : {first, again}) {
    ASSERT_TRUE(reader.At(ticket, &service).has_value());
    EXPECT_STREQ(service.algorithm, "ring");
    EXPECT_EQ(TransportNames(service.transports), "shm+tcp");
  }
  ASSERT_TRUE(reader.At(plain, &service).has_value());
  EXPECT_STREQ(service.algorithm, "");
  EXPECT_EQ(TransportNames(service.transports), "");
}

TEST_F(BlackBoxTest, SendsAreNotMistakenForCollectives) {
  CallRecord send = Record(5, 9);
  send.signature.kind = 10;
  send.peer = 3;
  rank_->black_box().Start(send);
  const BlackBoxReader reader = agent_->black_box_of(0);
  EXPECT_FALSE(reader.Find(5, 1, 9).has_value());
  EXPECT_EQ(reader.Reached(5, 1, 9), false);
  ASSERT_TRUE(reader.LatestOf(5, 1).has_value());
  EXPECT_EQ(DescribeCallAndSite(*reader.LatestOf(5, 1)), "send(sum, float32, 1024, to 3) at train.cc:88");
}

// Every field of a record is derived from its sequence, so that a reader notices a mixture of two.
TEST_F(BlackBoxTest, ReadersBesideTheWriterSeeWholeRecords) {
  std::atomic<bool> stop{false};
  std::atomic<int> bad{0};
  std::atomic<int> seen{0};
  std::thread reader([&] {
    const BlackBoxReader box = agent_->black_box_of(0);
    while (!stop.load()) {
      for (const CallRecord& record : box.All()) {
        const uint64_t sequence = record.signature.sequence;
        const bool whole = record.signature.group == sequence * 3 && record.bytes == sequence * 5 &&
                           record.peer == static_cast<int32_t>(sequence % 1000) &&
                           record.site == "s" + std::to_string(sequence) &&
                           (record.state == CallState::kStarted) == (record.end_ns == 0);
        if (!whole) bad.fetch_add(1);
        seen.fetch_add(1);
      }
    }
  });
  BlackBoxWriter& writer = rank_->black_box();
  for (uint64_t sequence = 1; sequence < 100'000 || seen.load() < 1000; ++sequence) {
    CallRecord record = Record(sequence * 3, sequence, "s" + std::to_string(sequence));
    record.bytes = sequence * 5;
    record.peer = static_cast<int32_t>(sequence % 1000);
    const uint64_t ticket = writer.Start(record);
    if (sequence % 3 != 0) writer.Finish(ticket, CallState::kDone);
  }
  stop.store(true);
  reader.join();
  EXPECT_EQ(bad.load(), 0);
}

TEST_F(BlackBoxTest, ReadersSurviveAnyContents) {
  const BlackBoxReader reader = agent_->black_box_of(0);
  CallRecord record;
  std::memset(static_cast<void*>(&record), 0xff, sizeof record);
  rank_->black_box().Start(record);
  ASSERT_TRUE(reader.Latest().has_value());
  EXPECT_EQ(DescribeCall(*reader.Latest()).substr(0, 9), "?(?, ?, 1");
  std::memset(record.site, '\033', sizeof record.site);
  EXPECT_EQ(SiteOf(record), std::string(sizeof record.site, '?'));
}

TEST(FastClockTest, FollowsTheSteadyClock) {
  FastClock clock;
  const Deadline deadline = Deadline::After(std::chrono::milliseconds(20));
  while (!deadline.passed()) {
    const uint64_t before = SteadyNow();
    const uint64_t now = clock.Now();
    const uint64_t after = SteadyNow();
    ASSERT_GE(now + 50'000, before);
    ASSERT_LE(now, after + 50'000);
  }
}

}  // namespace
}  // namespace cohort::runtime
