#include "tools/prediction/prediction_trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cohort/runtime/perfetto/perfetto_packets.h"
#include "tests/support/read_trace.h"

namespace cohort::tools {
namespace {

using launcher::ReadSlice;
using launcher::ReadTrace;
using std::string;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using v1::TrackEvent;

constexpr uint64_t kNode = 5;
constexpr uint64_t kRunBegin = 7'000'000'000;

class PredictionTraceTest : public ::testing::Test {
 protected:
  PredictionTraceTest() {
    string name = (std::filesystem::temp_directory_path() / "prediction_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/job.pftrace";
  }
  ~PredictionTraceTest() override { std::filesystem::remove_all(folder_); }

  // A trace of a run of two ranks on one node: barriers, and five all-reduces of 64 bytes, each a second after the
  // other.
  static string Run() {
    runtime::PerfettoPackets packets;
    packets.Begin(kRunBegin, 1);
    packets.Describe({.uuid = kNode, .name = "host3", .has_children = true});
    for (const uint64_t rank : {0u, 1u}) {
      packets.Describe({.uuid = 10 + rank, .name = "rank " + std::to_string(rank), .parent = kNode});
      for (uint64_t i = 0; i < 6; ++i) {
        const uint64_t begin = kRunBegin + i * 1'000'000'000;
        v1::TracePacket packet =
            packets.Event(TrackEvent::TYPE_SLICE_BEGIN, 10 + rank, begin, i == 0 ? "barrier" : "all_reduce");
        packets.AddNumber("bytes", 64, &packet);
        packets.Append(packet);
        packets.Append(packets.Event(TrackEvent::TYPE_SLICE_END, 10 + rank, begin + 1000));
      }
    }
    return packets.Take();
  }
  static bool IsLike(const runtime::PerfettoReader::Event& event) {
    return event.name == "all_reduce" && event.arguments.at("bytes") == "64";
  }
  void WriteFile(const string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // A call of 2 us with a step in it, on each of three ranks.
  absl::StatusOr<string> Predict() const {
    auto trace = PredictionTrace::Open(path_, "all_reduce ring", IsLike);
    if (!trace.ok()) return trace.status();
    for (const int rank : {0, 1, 2}) {
      trace->PutInGroup(rank, "node0");
      trace->BeginSlice(rank, 0, 0, "all_reduce", {.texts = {{"algorithm", "ring"}}});
      trace->BeginSlice(rank, 0, 500, "recv", {});
      trace->EndSlice(rank, 0, 1500);
      trace->EndSlice(rank, 0, 2000);
    }
    if (const absl::Status written = trace->Write(); !written.ok()) return written;
    return trace->place();
  }

  string folder_, path_;
};

TEST_F(PredictionTraceTest, AFileOfItsOwnHasATrackForEachRank) {
  const auto place = Predict();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(*place, "");
  const ReadTrace trace = ReadTrace::Of(path_, ReadTrace::Slices::kNested);
  EXPECT_THAT(trace.problems, IsEmpty());
  ASSERT_THAT(trace.slices, SizeIs(6));
  const uint64_t begin = trace.slices[0].start_ns - 500;  // of the calls, whose steps end first
  EXPECT_GT(begin, 0u);
  for (const ReadSlice& slice : trace.slices) {
    EXPECT_EQ(slice.node, "node0");
    EXPECT_THAT(slice.track, HasSubstr(", predicted: all_reduce ring"));
    const bool is_step = slice.name == "recv";
    EXPECT_EQ(slice.start_ns, is_step ? begin + 500 : begin);
    EXPECT_EQ(slice.end_ns, is_step ? begin + 1500 : begin + 2000);
    EXPECT_EQ(slice.arguments.count("algorithm"), is_step ? 0u : 1u);
  }
  EXPECT_EQ(std::count_if(trace.slices.begin(), trace.slices.end(), [](const auto& it) { return it.name == "recv"; }),
            3);
  EXPECT_EQ(trace.clocks.count("real"), 1u);
}

TEST_F(PredictionTraceTest, APredictionLiesBelowTheLikeOfARun) {
  WriteFile(Run());
  const auto place = Predict();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(*place, "below number 3 of 5 of rank 0, 3.000000 s after the beginning of the run");
  EXPECT_EQ(Bytes().substr(0, Run().size()), Run());
  const ReadTrace trace = ReadTrace::Of(path_, ReadTrace::Slices::kNested);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.CountOf("rank 0"), 6u);
  for (const int rank : {0, 1, 2}) {
    const string track = "rank " + std::to_string(rank) + ", predicted: all_reduce ring";
    EXPECT_EQ(trace.CountOf(track), 2u);
    for (const ReadSlice& slice : trace.slices) {
      if (slice.track != track) continue;
      EXPECT_EQ(slice.node, rank < 2 ? "host3" : "node0") << track;
      EXPECT_EQ(slice.start_ns, kRunBegin + 3'000'000'000 + (slice.name == "recv" ? 500 : 0));
    }
  }
}

TEST_F(PredictionTraceTest, ASecondPredictionLeavesTheFirst) {
  WriteFile(Run());
  ASSERT_TRUE(Predict().ok());
  ASSERT_TRUE(Predict().ok());
  const ReadTrace trace = ReadTrace::Of(path_, ReadTrace::Slices::kNested);
  EXPECT_THAT(trace.problems, IsEmpty());
  EXPECT_EQ(trace.CountOf("rank 0, predicted: all_reduce ring"), 4u);
}

TEST_F(PredictionTraceTest, ARunThatDidNothingLikeItIsSaid) {
  runtime::PerfettoPackets packets;
  packets.Begin(kRunBegin, 1);
  packets.Describe({.uuid = kNode, .name = "job"});
  packets.Append(packets.Event(TrackEvent::TYPE_INSTANT, kNode, kRunBegin + 50, "restart"));
  WriteFile(packets.Take());
  const auto place = Predict();
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(*place, HasSubstr("at the beginning of what the file holds"));
  EXPECT_EQ(ReadTrace::Of(path_, ReadTrace::Slices::kNested).slices.back().start_ns, kRunBegin + 50);
}

// As after kill -9 of dlaunch.
TEST_F(PredictionTraceTest, APacketThatIsCutOffGivesWay) {
  WriteFile(Run() + Run().substr(0, 40));
  ASSERT_TRUE(Predict().ok());
  EXPECT_THAT(ReadTrace::Of(path_, ReadTrace::Slices::kNested).problems, IsEmpty());
  EXPECT_THAT(ReadTrace::Of(path_, ReadTrace::Slices::kNested).slices, SizeIs(18));
}

TEST_F(PredictionTraceTest, OtherFilesAreRefusedAndLeft) {
  const string text = "a file of the user's\n";
  WriteFile(text);
  EXPECT_THAT(Predict().status().message(), HasSubstr(path_ + " is no trace"));
  EXPECT_EQ(Bytes(), text);
  EXPECT_FALSE(PredictionTrace::Open(folder_ + "/none/x", "", IsLike).ok());
}

TEST_F(PredictionTraceTest, ATraceThatIsBeingWrittenIsRefused) {
  WriteFile(Run());
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_THAT(Predict().status().message(), HasSubstr("still being written"));
  ::close(fd);
  EXPECT_EQ(Bytes(), Run());
  EXPECT_TRUE(Predict().ok());
}

}  // namespace
}  // namespace cohort::tools
