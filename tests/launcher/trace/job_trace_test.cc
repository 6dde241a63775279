#include "cohort/launcher/trace/job_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/ranges/range_ring.h"
#include "cohort/runtime/segment/call_record.h"
#include "tests/support/read_trace.h"
#include "tests/support/slow_folder.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::string;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two nodes with a rank each, whose clocks differ by an hour.
class JobTraceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kHour = 3'600'000'000'000;
  static constexpr uint32_t kSend = 10, kReceive = 11;  // as runtime::CallKindName has them

  JobTraceTest() {
    string name = (std::filesystem::temp_directory_path() / "job_trace_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/job.pftrace";
  }
  ~JobTraceTest() override { std::filesystem::remove_all(folder_); }

  void StartAll() {
    ASSERT_TRUE(trace_.Start({.path = path_, .keep = keep_}).ok());
    for (size_t i = 0; i < 2; ++i) trace_.OnAgentStarted(i);
  }
  // Runs the loop until the trace has ended. Both agents answer the order that ends it.
  void RunUntilEnded() {
    std::function<void()> look = [&] {
      if (!said_.empty()) return loop_.Quit();
      if (orders_.size() == 4) {
        for (size_t i = 0; i < 2; ++i) {
          v1::NodeTrace last = From(i);
          last.set_last(true);
          EXPECT_TRUE(trace_.OnTrace(i, last));
        }
        orders_.emplace_back(9, orders_.back().second);
      }
      loop_.After(std::chrono::milliseconds(5), look);
    };
    look();
    loop_.Run();
  }
  v1::NodeTrace From(size_t agent) const {
    v1::NodeTrace trace;
    trace.set_number(orders_.empty() ? 1 : orders_.back().second.number());
    trace.set_steady_ns(runtime::SteadyNow() + agent * kHour);
    trace.set_unix_ns(1'700'000'000'000'000'000);
    return trace;
  }
  // `count` all-reduces of both ranks, of 100 us each, as rank `rank` has recorded them. Rank 1 comes 60 us later.
  v1::TracedCalls Calls(uint32_t rank, int count) const {
    v1::TracedCalls calls;
    v1::RankCalls& its = *calls.add_ranks();
    its.set_rank(rank);
    v1::CallShape& shape = *its.add_shapes();
    shape.set_group(7);
    shape.set_kind(3);
    shape.set_bytes(8);
    shape.set_root(-1);
    shape.set_group_rank(static_cast<int32_t>(rank));
    shape.set_group_size(2);
    shape.set_peer_rank(-1);
    shape.set_device(-1);
    for (int i = 0; i < count; ++i) {
      const uint64_t start_ns = begun_ns_ + rank * (kHour + 60'000);
      its.add_shape(0);
      its.add_sequence(static_cast<uint64_t>(i) + 1);
      its.add_start_ns(i == 0 ? static_cast<int64_t>(start_ns) : 1'000'000);
      its.add_length_ns(rank == 0 ? 100'000 : 40'000);
      its.add_state(2);
    }
    return calls;
  }
  bool Send(size_t agent, const google::protobuf::Message& calls) {
    v1::NodeTrace trace = From(agent);
    trace.set_calls(runtime::Compress(calls.SerializeAsString()));
    return trace_.OnTrace(agent, trace);
  }

  string folder_, path_;
  std::chrono::milliseconds keep_{0};
  EventLoop loop_;
  std::vector<std::pair<size_t, v1::TraceOrder>> orders_;
  std::vector<string> said_;
  const uint64_t begun_ns_ = runtime::SteadyNow();
  JobTrace trace_{&loop_,
                  {.names = {"node0", "node1"},
                   .tell = [this](size_t agent, const v1::TraceOrder& order) { orders_.emplace_back(agent, order); },
                   .say = [this](const string& text) { said_.push_back(text); }}};
};

TEST_F(JobTraceTest, WritesTheCallsOfAllNodesByOneClock) {
  StartAll();
  EXPECT_TRUE(Send(0, Calls(0, 50)));
  EXPECT_TRUE(Send(1, Calls(1, 50)));
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.CountOf("rank 0"), 50u);
  EXPECT_EQ(trace.CountOf("rank 1"), 50u);
  for (const ReadSlice& slice : trace.slices) {
    EXPECT_LT(slice.start_ns, begun_ns_ + kHour / 2) << slice.track;
    EXPECT_EQ(slice.node, slice.track == "rank 0" ? "node0" : "node1");
  }
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("100 calls; the clocks of 2 nodes agree within 75 us"));
  EXPECT_TRUE(trace.HasEvent("end of the trace"));
}

// The messages of rank 0 take 10 us, which the all-reduces alone cannot tell.
TEST_F(JobTraceTest, MessagesBoundClocksFromOneSide) {
  StartAll();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(Send(rank, Calls(rank, 50)));
    v1::TracedCalls messages = Calls(rank, 50);
    v1::RankCalls& its = *messages.mutable_ranks(0);
    its.mutable_shapes(0)->set_kind(rank == 0 ? kSend : kReceive);
    its.mutable_shapes(0)->set_peer_rank(rank == 0 ? 1 : 0);
    its.set_start_ns(0, static_cast<int64_t>(begun_ns_ + rank * kHour));
    for (int i = 0; i < 50; ++i) its.set_length_ns(i, rank == 0 ? 0 : 10'000);
    EXPECT_TRUE(Send(rank, messages));
  }
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("200 calls; the clocks of 2 nodes agree within 30 us"));
}

TEST_F(JobTraceTest, CallsThatAreSeenLateAlignClocksLessClosely) {
  StartAll();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::TracedCalls calls = Calls(rank, 50);
    calls.mutable_ranks(0)->mutable_shapes(0)->set_device(runtime::kUnknownDevice);
    EXPECT_TRUE(Send(rank, calls));
  }
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  const ReadTrace trace = ReadTrace::Of(path_);
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("the clocks of 2 nodes agree within 1075 us"));
  for (const ReadSlice& slice : trace.slices) EXPECT_EQ(slice.arguments.count("device"), 0u);
}

TEST_F(JobTraceTest, RangesAreOnTheLanesOfTheirRankAndStepsAmongItsCalls) {
  StartAll();
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(Send(rank, Calls(rank, 50)));
  v1::TracedRanges ranges;
  v1::RankRanges& its = *ranges.add_ranges();
  its.set_rank(1);
  its.add_names("inner");
  its.add_names("outer");
  its.add_names("");
  const auto add = [&its](uint32_t name, runtime::RangeLane lane, uint64_t number, int64_t start_ns,
                          uint64_t length_ns) {
    its.add_name(name);
    its.add_lane(static_cast<uint32_t>(lane));
    its.add_line(2);
    its.add_number(number);
    its.add_start_ns(start_ns);
    its.add_length_ns(length_ns);
  };
  const auto begun_ns = static_cast<int64_t>(begun_ns_ + kHour);
  add(0, runtime::RangeLane::kPasses, 4, begun_ns, 1000);
  add(1, runtime::RangeLane::kPasses, runtime::kNoNumber, 0, 9000);  // begins with the inner one, and ends later
  add(2, runtime::RangeLane::kSteps, 17, 50, 0);
  EXPECT_TRUE(Send(1, ranges));
  its.set_missed(6);
  its.set_start_ns(0, begun_ns + 20'000);
  EXPECT_TRUE(Send(1, ranges));
  its.add_lane(0);
  EXPECT_FALSE(Send(1, ranges));
  its.mutable_lane()->RemoveLast();
  its.set_lane(0, runtime::kRangeLanes);
  EXPECT_FALSE(Send(1, ranges));
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  ASSERT_THAT(trace.ranges, SizeIs(4));
  EXPECT_EQ(trace.ranges[0].name, "inner");
  EXPECT_EQ(trace.ranges[0].track, "rank 1 passes");
  EXPECT_EQ(trace.ranges[0].node, "node1");
  EXPECT_EQ(trace.ranges[0].arguments.at("number"), "4");
  EXPECT_EQ(trace.ranges[0].end_ns - trace.ranges[0].start_ns, 1000u);
  EXPECT_LT(trace.ranges[0].start_ns, begun_ns_ + kHour / 2);
  EXPECT_EQ(trace.ranges.back().name, "outer");
  EXPECT_EQ(trace.ranges.back().arguments.count("number"), 0u);
  EXPECT_TRUE(trace.HasEvent("step"));
  EXPECT_TRUE(trace.HasEvent("ranges missing"));
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("100 calls, 6 ranges are missing"));
}

TEST_F(JobTraceTest, MissingCallsAreShownAndCounted) {
  StartAll();
  v1::TracedCalls calls = Calls(0, 5);
  calls.mutable_ranks(0)->set_missed(7);
  EXPECT_TRUE(Send(0, calls));
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  EXPECT_TRUE(ReadTrace::Of(path_).HasEvent("calls missing"));
  EXPECT_THAT(said_[0], HasSubstr("5 calls, 7 more are missing"));
}

TEST_F(JobTraceTest, EventsOfTheJobAreOnItsTrack) {
  StartAll();
  EXPECT_TRUE(trace_.OnTrace(0, From(0)));
  trace_.OnEvent("restart", "rank 3 was killed");
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  EXPECT_TRUE(ReadTrace::Of(path_).HasEvent("restart"));
}

TEST_F(JobTraceTest, TheLastPartsAreKept) {
  keep_ = std::chrono::milliseconds(1);
  StartAll();
  // Each look of the trace begins a part: seven in this time, which is under test.
  int sent = 0;
  std::function<void()> look = [&] {
    if (++sent == 15) return loop_.Quit();
    EXPECT_TRUE(Send(0, Calls(0, 2)) && Send(1, Calls(1, 2)));
    loop_.After(std::chrono::milliseconds(50), look);
  };
  look();
  loop_.Run();
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  const ReadTrace trace = ReadTrace::Of(path_);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_LT(trace.slices.size(), 28u);
  EXPECT_THAT(said_[0], HasSubstr(" older ones were dropped"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".before"));
}

TEST_F(JobTraceTest, ASecondTraceIsRefused) {
  StartAll();
  v1::TraceRequest request;
  request.set_file(folder_ + "/other");
  request.set_milliseconds(1000);
  EXPECT_THAT(trace_.Answer(request).refused(),
              AllOf(HasSubstr("a trace is being taken already, to " + path_), HasSubstr("[trace-taken]")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/other"));
}

TEST_F(JobTraceTest, AFileServerThatIsSilentDoesNotHoldTheJobUp) {
  std::ofstream(path_) << "\n\x1a\x92\x03\x17what was there before";
  v1::TraceRequest request;
  request.set_file(path_);
  request.set_milliseconds(60'000);
  {
    const testing::SlowFolder slow(folder_);
    if (!slow.works()) GTEST_SKIP() << slow.why_not();
    EXPECT_TRUE(trace_.Answer(request).running());
    slow.AwaitOpening();
    for (size_t i = 0; i < 2; ++i) trace_.OnAgentStarted(i);
    EXPECT_TRUE(Send(0, Calls(0, 5)) && Send(1, Calls(1, 5)));
  }
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  EXPECT_EQ(ReadTrace::Of(path_).CountOf("rank 0"), 5u);
  EXPECT_THAT(said_[0], HasSubstr("10 calls"));
}

TEST_F(JobTraceTest, ATraceEndsAfterItsTime) {
  for (size_t i = 0; i < 2; ++i) trace_.OnAgentStarted(i);
  ASSERT_TRUE(trace_.Start({.path = path_, .length = std::chrono::milliseconds(50)}).ok());
  ASSERT_THAT(orders_, SizeIs(2));
  EXPECT_TRUE(Send(0, Calls(0, 5)));
  RunUntilEnded();
  EXPECT_FALSE(orders_[2].second.on());
  EXPECT_THAT(said_[0], HasSubstr("5 calls"));
  EXPECT_EQ(ReadTrace::Of(path_).CountOf("rank 0"), 5u);
  v1::TraceRequest ask;
  ask.set_number(1);
  EXPECT_FALSE(trace_.Answer(ask).running());
  EXPECT_EQ(trace_.Answer(ask).calls(), 5u);
}

TEST_F(JobTraceTest, ATraceForSomebodyEndsWhenNobodyAsksForItAnyMore) {
  for (size_t i = 0; i < 2; ++i) trace_.OnAgentStarted(i);
  v1::TraceRequest request;
  request.set_file(path_);
  request.set_milliseconds(3'600'000);
  request.set_while_asked(true);
  ASSERT_TRUE(trace_.Answer(request).running());
  // Asked for until then.
  const auto begun = EventLoop::Clock::now();
  const auto asked_until = begun + std::chrono::seconds(2);
  std::function<void()> ask = [&] {
    request.set_number(1);
    EXPECT_TRUE(trace_.Answer(request).running());
    if (EventLoop::Clock::now() < asked_until) loop_.After(std::chrono::milliseconds(100), ask);
  };
  ask();
  RunUntilEnded();
  EXPECT_GE(EventLoop::Clock::now() - asked_until, JobTrace::kAskedWithin - std::chrono::milliseconds(200));
  EXPECT_FALSE(trace_.Answer({}).running());
}

TEST_F(JobTraceTest, TheEndOfAQuietTraceIsToldToTheAskerAlone) {
  for (size_t i = 0; i < 2; ++i) trace_.OnAgentStarted(i);
  v1::TraceRequest request;
  request.set_file(path_);
  request.set_milliseconds(3'600'000);
  request.set_quiet(true);
  ASSERT_TRUE(trace_.Answer(request).running());
  EXPECT_TRUE(Send(0, Calls(0, 5)));
  trace_.Finish(Deadline::After(std::chrono::seconds(20)));
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_THAT(trace_.Answer({}).summary(), HasSubstr("5 calls"));
}

TEST_F(JobTraceTest, DamagedMessagesAreRefused) {
  StartAll();
  v1::NodeTrace trace = From(0);
  trace.set_calls("these bytes mean nothing");
  EXPECT_FALSE(trace_.OnTrace(0, trace));
  v1::TracedCalls calls = Calls(0, 3);
  calls.mutable_ranks(0)->set_shape(1, 1);  // there is one shape
  EXPECT_FALSE(Send(0, calls));
  calls = Calls(0, 3);
  calls.mutable_ranks(0)->add_state(2);
  EXPECT_FALSE(Send(0, calls));
  trace = From(0);
  trace.set_calls(runtime::Compress("these bytes mean nothing"));
  EXPECT_FALSE(trace_.OnTrace(0, trace));
}

TEST_F(JobTraceTest, MessagesOfAnEarlierTraceAreIgnored) {
  StartAll();
  v1::NodeTrace trace = From(0);
  trace.set_number(99);
  trace.set_calls("these bytes mean nothing");
  EXPECT_TRUE(trace_.OnTrace(0, trace));
}

}  // namespace
}  // namespace cohort::launcher
