// PerfettoReader gives back what PerfettoPackets has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/runtime/perfetto/perfetto_packets.h"
#include "cohort/runtime/perfetto/perfetto_reader.h"

namespace cohort::runtime {
namespace {

using std::string;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using Type = v1::TrackEvent;

class PerfettoTest : public ::testing::Test {
 protected:
  PerfettoTest() {
    string name = (std::filesystem::temp_directory_path() / "perfetto_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~PerfettoTest() override { std::filesystem::remove_all(folder_); }

  // Describes a track and puts a slice on it.
  static void AddSlice(PerfettoPackets& packets, uint64_t track, const string& name, uint64_t begin_ns,
                       uint64_t end_ns) {
    packets.Describe({.uuid = track, .name = "track " + std::to_string(track), .parent = 7});
    v1::TracePacket packet = packets.Event(Type::TYPE_SLICE_BEGIN, track, begin_ns, name);
    packets.AddText("text", "of " + name, &packet);
    packets.AddNumber("number", 42, &packet);
    packets.Append(packet);
    packets.Append(packets.Event(Type::TYPE_SLICE_END, track, end_ns));
  }
  absl::Status Read(const string& bytes) {
    const string path = folder_ + "/file";
    std::ofstream(path, std::ios::binary) << bytes;
    reader_ = PerfettoReader();
    events_.clear();
    return reader_.Read(path, [this](const PerfettoReader::Event& event) { events_.push_back(event); });
  }

  string folder_;
  PerfettoReader reader_;
  std::vector<PerfettoReader::Event> events_;
};

TEST_F(PerfettoTest, GivesBackWhatWasWritten) {
  PerfettoPackets packets;
  packets.Begin(1000, 2000);
  AddSlice(packets, 3, "first", 1100, 1200);
  AddSlice(packets, 3, "first", 1300, 1400);
  ASSERT_TRUE(Read(packets.Take()).ok());
  EXPECT_EQ(packets.Take(), "");
  ASSERT_THAT(events_, SizeIs(4));
  for (const size_t begin : {0u, 2u}) {
    EXPECT_EQ(events_[begin].type, Type::TYPE_SLICE_BEGIN);
    EXPECT_EQ(events_[begin].name, "first");
    EXPECT_EQ(events_[begin].ns, 1100 + begin * 100);
    EXPECT_THAT(events_[begin].arguments, ElementsAre(Pair("number", "42"), Pair("text", "of first")));
    EXPECT_EQ(events_[begin + 1].type, Type::TYPE_SLICE_END);
    EXPECT_EQ(events_[begin + 1].ns, 1200 + begin * 100);
  }
  ASSERT_THAT(reader_.tracks(), SizeIs(1));
  EXPECT_EQ(reader_.tracks().at(3).name, "track 3");
  EXPECT_EQ(reader_.tracks().at(3).parent, 7u);
}

TEST_F(PerfettoTest, AWriterBehindAnotherHasTextsOfItsOwn) {
  PerfettoPackets run;
  run.Begin(1000, 2000);
  AddSlice(run, 3, "of the run", 1100, 1200);
  PerfettoPackets prediction;
  prediction.BeginBehind();
  AddSlice(prediction, 4, "predicted", 1100, 1150);
  ASSERT_TRUE(Read(run.Take() + prediction.Take()).ok());
  ASSERT_THAT(events_, SizeIs(4));
  EXPECT_EQ(events_[0].name, "of the run");
  EXPECT_EQ(events_[2].name, "predicted");
  EXPECT_EQ(events_[2].arguments.at("text"), "of predicted");
  EXPECT_THAT(reader_.tracks(), SizeIs(2));
}

TEST_F(PerfettoTest, TextsBeyondTheBoundAreWrittenOut) {
  PerfettoPackets packets;
  packets.Begin(1000, 2000);
  constexpr int kNames = 70'000;
  packets.Describe({.uuid = 3, .name = "track"});
  for (int i = 0; i < kNames; ++i) {
    v1::TracePacket packet = packets.Event(Type::TYPE_INSTANT, 3, 1000, "name " + std::to_string(i));
    packets.AddText("text", "text " + std::to_string(i), &packet);
    packets.Append(packet);
  }
  ASSERT_TRUE(Read(packets.Take()).ok());
  ASSERT_THAT(events_, SizeIs(kNames));
  for (const int i : {0, 1, kNames - 1}) {
    EXPECT_EQ(events_[static_cast<size_t>(i)].name, "name " + std::to_string(i));
    EXPECT_EQ(events_[static_cast<size_t>(i)].arguments.at("text"), "text " + std::to_string(i));
  }
}

TEST_F(PerfettoTest, APacketThatIsCutOffAtTheEndIsLeftOut) {
  PerfettoPackets packets;
  packets.Begin(1000, 2000);
  AddSlice(packets, 3, "first", 1100, 1200);
  const string first = packets.Take();
  AddSlice(packets, 3, "second", 1300, 1400);
  const string second = packets.Take();
  for (size_t left = 0; left < second.size(); ++left) {
    ASSERT_TRUE(Read(first + second.substr(0, left)).ok()) << left;
    ASSERT_THAT(events_, SizeIs(2)) << left;
    ASSERT_EQ(reader_.whole_bytes(), first.size()) << left;
    ASSERT_EQ(reader_.cut(), left > 0) << left;
  }
}

TEST_F(PerfettoTest, DamageBehindWholePacketsIsTold) {
  PerfettoPackets packets;
  packets.Begin(1000, 2000);
  AddSlice(packets, 3, "first", 1100, 1200);
  const string first = packets.Take();
  AddSlice(packets, 3, "second", 1300, 1400);
  string second = packets.Take();
  second[second.size() / 2] = static_cast<char>(second[second.size() / 2] ^ 0x10);
  const absl::Status damaged = Read(first + second);
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr("is damaged behind byte " + std::to_string(first.size())));
}

TEST_F(PerfettoTest, OtherFilesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(PerfettoReader().Read(folder_ + "/none", [](const PerfettoReader::Event&) {})));
  EXPECT_THAT(Read("#!/bin/sh\n").message(), HasSubstr("/file is no trace"));
  v1::TraceFile file;
  file.add_packet()->set_compressed_packets("these bytes mean nothing");
  EXPECT_THAT(Read(file.SerializeAsString()).message(), HasSubstr("or a damaged one"));
  // A packet that holds itself compressed, again and again, must not cost the stack.
  string inside = file.SerializeAsString();
  for (int i = 0; i < 3; ++i) {
    v1::TraceFile around;
    around.add_packet()->set_compressed_packets(Compress(inside));
    inside = around.SerializeAsString();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Read(inside)));
}

}  // namespace
}  // namespace cohort::runtime
