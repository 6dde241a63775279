#include "cohort/launcher/trace/trace_packets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/read_trace.h"

namespace cohort::launcher {
namespace {

using std::string;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

TracedCall AllReduceCall(uint32_t rank, uint64_t sequence, uint64_t start_ns, uint64_t end_ns) {
  auto shape = std::make_shared<v1::CallShape>();
  shape->set_group(0xab);
  shape->set_epoch(1);
  shape->set_kind(3);
  shape->set_bytes(4096);
  shape->set_group_size(4);
  shape->set_peer_rank(-1);
  shape->set_device(-1);
  shape->set_call("all_reduce(sum, float32, 1024)");
  shape->set_site("train.cc:88");
  shape->set_algorithm("leader:flat+ring");
  shape->set_transports("shm+tcp");
  return {
      .rank = rank, .node = 1, .shape = std::move(shape), .sequence = sequence, .start_ns = start_ns, .end_ns = end_ns};
}

class TracePacketsTest : public ::testing::Test {
 protected:
  TracePacketsTest() { packets_.Begin(1000, 2'000'000); }
  TracePackets packets_;
};

TEST_F(TracePacketsTest, ACallIsASliceOnTheTrackOfItsRank) {
  const TracedCall call = AllReduceCall(3, 42, 5000, 7000);
  EXPECT_TRUE(packets_.Add({.call = &call, .node = "node1", .waited = 9, .waited_for = 2, .waited_ns = 1500}));
  const ReadTrace trace(packets_.Take());
  EXPECT_THAT(trace.problems, IsEmpty());
  ASSERT_THAT(trace.slices, SizeIs(1));
  const ReadSlice& slice = trace.slices[0];
  EXPECT_EQ(slice.node, "node1");
  EXPECT_EQ(slice.track, "rank 3");
  EXPECT_EQ(slice.name, "all_reduce");
  EXPECT_EQ(slice.start_ns, 5000u);
  EXPECT_EQ(slice.end_ns, 7000u);
  EXPECT_EQ(slice.arguments.at("call"), "all_reduce(sum, float32, 1024)");
  EXPECT_EQ(slice.arguments.at("site"), "train.cc:88");
  EXPECT_EQ(slice.arguments.at("algorithm"), "leader:flat+ring");
  EXPECT_EQ(slice.arguments.at("transports"), "shm+tcp");
  EXPECT_EQ(slice.arguments.at("bytes"), "4096");
  EXPECT_EQ(slice.arguments.at("group"), "00000000000000ab");
  EXPECT_EQ(slice.arguments.at("sequence"), "42");
  EXPECT_EQ(slice.arguments.at("waited for rank"), "2");
  EXPECT_EQ(slice.waited, std::vector<uint64_t>{9});
  EXPECT_EQ(trace.clocks.at("boot"), 1000u);
  EXPECT_EQ(trace.clocks.at("real"), 2'000'000u);
}

TEST_F(TracePacketsTest, CallsThatOverlapAreOnSeveralLines) {
  for (uint64_t i = 0; i < 4; ++i) {
    const TracedCall call = AllReduceCall(0, i + 1, 1000 + i * 10, 2000);
    EXPECT_TRUE(packets_.Add({.call = &call, .node = "node0"}));
  }
  const TracedCall later = AllReduceCall(0, 5, 2000, 2000);
  EXPECT_TRUE(packets_.Add({.call = &later, .node = "node0"}));
  const ReadTrace trace(packets_.Take());
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.CountOf("rank 0"), 5u);
}

TEST_F(TracePacketsTest, LinesOfARankAreBounded) {
  for (uint64_t i = 0; i <= TracePackets::kMostLines; ++i) {
    const TracedCall call = AllReduceCall(0, i + 1, 1000 + i, 90'000);
    EXPECT_EQ(packets_.Add({.call = &call, .node = "node0"}), i < TracePackets::kMostLines);
  }
}

// As where bucket 64 begins on its way before bucket 0, on the same line, has come.
TEST_F(TracePacketsTest, RangesThatCrossKeepTheirTimes) {
  const std::vector<std::pair<uint64_t, uint64_t>> times = {
      {1100, 1300}, {1200, 1250}, {1200, 1400}, {1300, 1500}, {1400, 1600}};
  for (const auto& [start_ns, end_ns] : times) {
    EXPECT_TRUE(packets_.AddRange(
        {.rank = 3, .name = "bucket", .lane = runtime::RangeLane::kBuckets, .start_ns = start_ns, .end_ns = end_ns},
        "node0"));
  }
  const ReadTrace trace(packets_.Take());
  EXPECT_THAT(trace.problems, IsEmpty());
  std::vector<std::pair<uint64_t, uint64_t>> read;
  for (const ReadSlice& range : trace.ranges) {
    EXPECT_EQ(range.track, "rank 3 buckets");
    read.emplace_back(range.start_ns, range.end_ns);
  }
  EXPECT_THAT(read, UnorderedElementsAreArray(times));
}

TEST_F(TracePacketsTest, TracksOfALineAreBounded) {
  for (uint64_t i = 0; i <= TracePackets::kMostTracksOfLine; ++i) {
    const TracedRange range{.rank = 3, .name = "bucket", .start_ns = 2000 + i, .end_ns = 9000 + i};
    EXPECT_EQ(packets_.AddRange(range, "node0"), i < TracePackets::kMostTracksOfLine);
  }
}

TEST_F(TracePacketsTest, AnyNumberOfPiecesIsATrace) {
  string file;
  for (uint64_t i = 0; i < 10; ++i) {
    const TracedCall call = AllReduceCall(0, i + 1, 1000 + i * 100, 1050 + i * 100);
    EXPECT_TRUE(packets_.Add({.call = &call, .node = "node0"}));
    file += packets_.Take();
    const ReadTrace trace(file);
    EXPECT_THAT(trace.problems, IsEmpty());
    EXPECT_THAT(trace.slices, SizeIs(i + 1));
    EXPECT_EQ(trace.slices.back().arguments.at("site"), "train.cc:88");
  }
}

TEST_F(TracePacketsTest, AFileThatBeginsNeedsNothingOfTheOneBefore) {
  const TracedCall call = AllReduceCall(0, 1, 1000, 2000);
  EXPECT_TRUE(packets_.Add({.call = &call, .node = "node0"}));
  (void)packets_.Take();
  packets_.Begin(3000, 4'000'000);
  const TracedCall next = AllReduceCall(0, 2, 3000, 4000);
  EXPECT_TRUE(packets_.Add({.call = &next, .node = "node0"}));
  const ReadTrace trace(packets_.Take());
  EXPECT_THAT(trace.problems, IsEmpty());
  ASSERT_THAT(trace.slices, SizeIs(1));
  EXPECT_EQ(trace.slices[0].name, "all_reduce");
}

TEST_F(TracePacketsTest, EventsAndMissingCallsAreInstants) {
  packets_.AddEvent("restart", "rank 3 was killed", 4000);
  packets_.AddMissed(3, 1, "node1", 17, 5000);
  const ReadTrace trace(packets_.Take());
  EXPECT_THAT(trace.problems, IsEmpty());
  ASSERT_THAT(trace.instants, SizeIs(3));
  EXPECT_EQ(trace.instants[0].name, "begin of the trace");
  EXPECT_EQ(trace.instants[0].arguments.at("format"), "1");
  EXPECT_EQ(trace.instants[1].track, "job");
  EXPECT_EQ(trace.instants[1].arguments.at("text"), "rank 3 was killed");
  EXPECT_EQ(trace.instants[2].track, "rank 3");
  EXPECT_EQ(trace.instants[2].arguments.at("calls"), "17");
}

}  // namespace
}  // namespace cohort::launcher
