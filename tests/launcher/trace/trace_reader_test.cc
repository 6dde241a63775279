#include "cohort/launcher/trace/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/trace/trace_packets.h"
#include "cohort/runtime/perfetto/compressed.h"
#include "cohort/v1/trace_file.pb.h"

namespace cohort::launcher {
namespace {

using runtime::Compress;
using runtime::Uncompress;
using std::string;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TracedCall CallOf(uint32_t rank, uint32_t kind, int32_t peer, uint64_t sequence, uint64_t start_ns, uint64_t end_ns) {
  auto shape = std::make_shared<v1::CallShape>();
  shape->set_group(0xab);
  shape->set_epoch(2);
  shape->set_kind(kind);
  shape->set_bytes(4096);
  shape->set_group_size(4);
  shape->set_peer_rank(peer);
  shape->set_device(-1);
  shape->set_call("a call");
  shape->set_site("train.cc:88");
  return {.rank = rank,
          .node = rank / 2,
          .shape = std::move(shape),
          .sequence = sequence,
          .start_ns = start_ns,
          .end_ns = end_ns};
}

RankState State(uint32_t rank, Activity activity, uint64_t begin_ns, uint64_t end_ns) {
  auto shape = std::make_shared<v1::StateShape>();
  shape->set_activity(static_cast<uint32_t>(activity));
  shape->set_object("read of /data/x");
  shape->set_place("/x/train.py:3 in load");
  return {.rank = rank,
          .node = rank / 2,
          .shape = std::move(shape),
          .begin_ns = begin_ns,
          .end_ns = end_ns,
          .computed_ns = 5,
          .queued_ns = 6,
          .throttled_ns = 7};
}

class TraceReaderTest : public ::testing::Test {
 protected:
  TraceReaderTest() {
    string folder = (std::filesystem::temp_directory_path() / "trace_reader_test.XXXXXX").string();
    folder_ = ::mkdtemp(folder.data());
  }
  ~TraceReaderTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<TraceContents> ReadBytes(const string& bytes) const {
    const string path = folder_ + "/job.pftrace";
    std::ofstream(path, std::ios::binary) << bytes;
    return ReadTraceFile(path);
  }
  void Add(const TracedCall& call) {
    EXPECT_TRUE(packets_.Add({.call = &call, .node = call.node == 0 ? "node0" : "node1"}));
  }
  // A trace of several pieces.
  string Trace() {
    packets_.Begin(100, 2'000'000);
    Add(CallOf(0, 3, -1, 1, 1000, 2000));
    Add(CallOf(3, 3, -1, 1, 1100, 2000));
    string bytes = packets_.Take();
    TracedCall open = CallOf(1, 3, -1, 2, 3000, 4000);
    open.state = runtime::CallState::kStarted;
    Add(open);
    packets_.AddState(State(3, Activity::kReads, 2000, 3000), "node1");
    packets_.AddMissed(1, 0, "node0", 5, 3000);
    packets_.AddStep({.rank = 3, .number = 17, .ns = 2500}, 1, "node1");
    packets_.AddRange({.rank = 3, .node = 1, .name = "forward", .start_ns = 2500, .end_ns = 2600}, "node1");
    packets_.AddEvent("restart", "because", 3500);
    return bytes + packets_.Take();
  }

  string folder_;
  TracePackets packets_;
};

TEST_F(TraceReaderTest, ReadsWhatWasWritten) {
  const absl::StatusOr<TraceContents> read = ReadBytes(Trace());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->nodes, ElementsAre("node0", "node1"));
  EXPECT_EQ(read->missed_calls(), 5u);
  EXPECT_FALSE(read->cut);
  ASSERT_THAT(read->calls, SizeIs(3));
  const TracedCall& call = read->calls[1];
  EXPECT_EQ(call.rank, 3u);
  EXPECT_EQ(call.node, 1u);
  EXPECT_EQ(call.start_ns, 1100u);
  EXPECT_EQ(call.end_ns, 2000u);
  EXPECT_EQ(call.sequence, 1u);
  EXPECT_EQ(call.state, runtime::CallState::kDone);
  EXPECT_EQ(call.shape->kind(), 3u);
  EXPECT_EQ(call.shape->group(), 0xabu);
  EXPECT_EQ(call.shape->epoch(), 2u);
  EXPECT_EQ(call.shape->bytes(), 4096u);
  EXPECT_EQ(call.shape->group_size(), 4);
  EXPECT_EQ(call.shape->peer_rank(), -1);
  EXPECT_EQ(call.shape->device(), -1);
  EXPECT_EQ(call.shape->call(), "a call");
  EXPECT_EQ(call.shape->site(), "train.cc:88");
  EXPECT_EQ(read->calls[2].state, runtime::CallState::kStarted);
  ASSERT_THAT(read->marks, SizeIs(1));
  EXPECT_EQ(read->marks[0].rank, 3u);
  EXPECT_EQ(read->marks[0].number, 17u);
  EXPECT_EQ(read->marks[0].ns, 2500u);
  ASSERT_THAT(read->states, SizeIs(1));
  const RankState& state = read->states[0];
  EXPECT_EQ(state.rank, 3u);
  EXPECT_EQ(state.node, 1u);
  EXPECT_EQ(state.activity(), Activity::kReads);
  EXPECT_EQ(state.shape->object(), "read of /data/x");
  EXPECT_EQ(state.shape->place(), "/x/train.py:3 in load");
  EXPECT_EQ(state.begin_ns, 2000u);
  EXPECT_EQ(state.end_ns, 3000u);
  EXPECT_EQ(state.computed_ns, 5u);
  EXPECT_EQ(state.queued_ns, 6u);
  EXPECT_EQ(state.throttled_ns, 7u);
}

TEST_F(TraceReaderTest, CallsThatGoOnAreOpenUntilTheyHaveEnded) {
  packets_.Begin(100, 2'000'000);
  TracedCall ended = CallOf(0, 3, -1, 1, 1000, 2000), open = CallOf(1, 3, -1, 1, 1000, 2000);
  ended.state = open.state = runtime::CallState::kStarted;
  packets_.AddOpen(ended, "node0");
  packets_.AddOpen(open, "node0");
  open.end_ns = 4000;
  packets_.AddOpen(open, "node0");
  Add(CallOf(0, 3, -1, 1, 1000, 9000));
  const absl::StatusOr<TraceContents> read = ReadBytes(packets_.Take());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(read->calls, SizeIs(2));
  EXPECT_EQ(read->calls[0].state, runtime::CallState::kDone);
  EXPECT_EQ(read->calls[1].state, runtime::CallState::kStarted);
  EXPECT_EQ(read->calls[1].rank, 1u);
  EXPECT_EQ(read->calls[1].start_ns, 1000u);
  EXPECT_EQ(read->calls[1].end_ns, 9000u) << "the trace goes on until then";
  EXPECT_EQ(read->calls[1].shape->call(), "a call");
}

TEST_F(TraceReaderTest, ACallWhoseEndWasMissedIsNotOpen) {
  packets_.Begin(100, 2'000'000);
  TracedCall open = CallOf(1, 3, -1, 1, 1000, 2000);
  open.state = runtime::CallState::kStarted;
  packets_.AddOpen(open, "node0");
  Add(CallOf(1, 3, -1, 600, 5000, 6000));
  packets_.AddMissed(1, 0, "node0", 511, 6000);
  const absl::StatusOr<TraceContents> read = ReadBytes(packets_.Take());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(read->calls, SizeIs(1));
  EXPECT_EQ(read->calls[0].sequence, 600u);
}

// Its rank makes others meanwhile, and tells it again: it is known to go on.
TEST_F(TraceReaderTest, ACallThatIsToldAgainGoesOnBesideTooManyOthers) {
  constexpr uint64_t kTooMany = (1u << 16) + 1;
  packets_.Begin(100, 2'000'000);
  TracedCall open = CallOf(1, 3, -1, 1, 1000, 2000);
  open.state = runtime::CallState::kStarted;
  packets_.AddOpen(open, "node0");
  TracedCall other = CallOf(0, 3, -1, 0, 1000, 2000);
  string bytes;
  for (other.sequence = 1; other.sequence < kTooMany; ++other.sequence) {
    packets_.AddOpen(other, "node0");
    if (other.sequence % 4096 == 0) bytes += packets_.Take();
  }
  packets_.AddMissed(1, 0, "node0", 600, 3000);
  open.end_ns = 4000;
  packets_.AddOpen(open, "node0");
  const absl::StatusOr<TraceContents> read = ReadBytes(bytes + packets_.Take());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(
      std::count_if(read->calls.begin(), read->calls.end(), [](const TracedCall& call) { return call.rank == 1; }), 1);
}

// The last member of a broadcast is not waited for, but the root is: the trace tells the root as a world rank.
TEST_F(TraceReaderTest, WaitsAreThoseOfTheCalls) {
  packets_.Begin(100, 2'000'000);
  for (uint32_t rank = 0; rank < 4; ++rank) Add(CallOf(rank, 1, 2, 1, rank == 2 ? 50'000 : 1000 + 100 * rank, 60'000));
  const absl::StatusOr<TraceContents> read = ReadBytes(packets_.Take());
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<Waited> waits = FindWaits(read->calls, 1000);
  ASSERT_THAT(waits, SizeIs(3));
  for (const Waited& wait : waits) EXPECT_EQ(read->calls[wait.cause].rank, 2u);
}

TEST_F(TraceReaderTest, TheLatestPartHasNothingOfWhatCameBefore) {
  packets_.Begin(100, 2'000'000);
  for (const uint64_t second : {1u, 9u}) {
    const uint64_t ns = second * 1'000'000'000;
    Add(CallOf(0, 3, -1, second, ns, ns + 1000));
    packets_.AddState(State(0, Activity::kReads, ns + 1000, ns + 2000), "node0");
    packets_.AddStep({.rank = 0, .number = second, .ns = ns + 2000}, 0, "node0");
    packets_.AddMissed(0, 0, "node0", second, ns + 2000);
  }
  absl::StatusOr<TraceContents> read = ReadBytes(packets_.Take());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->missed_calls(), 10u);
  read->left_out = 7;
  EXPECT_EQ(read->length(), std::chrono::nanoseconds(9'000'001'900)) << "the trace began at 100 ns";
  KeepLatest(std::chrono::seconds(20), &*read);
  EXPECT_THAT(read->calls, SizeIs(2));
  EXPECT_EQ(read->left_out, 7u);
  KeepLatest(std::chrono::seconds(3), &*read);
  ASSERT_THAT(read->calls, SizeIs(1));
  EXPECT_EQ(read->calls[0].sequence, 9u);
  EXPECT_EQ(read->length(), std::chrono::seconds(3)) << "sparse calls make the kept part no shorter";
  read->begin_ns.reset();
  EXPECT_EQ(read->length(), std::chrono::nanoseconds(2000)) << "nothing tells when the trace began";
  EXPECT_EQ(TraceContents().length(), std::chrono::nanoseconds(0));
  EXPECT_THAT(read->states, SizeIs(1));
  ASSERT_THAT(read->marks, SizeIs(1));
  EXPECT_EQ(read->marks[0].number, 9u);
  EXPECT_EQ(read->missed_calls(), 9u);
  EXPECT_EQ(read->left_out, 0u);
}

TEST_F(TraceReaderTest, PartsOneAfterAnotherAreOneTrace) {
  string bytes = Trace();
  packets_.Begin(100, 2'000'000);
  Add(CallOf(2, 3, -1, 7, 9000, 9500));
  bytes += packets_.Take();
  const absl::StatusOr<TraceContents> read = ReadBytes(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_THAT(read->calls, SizeIs(4));
  EXPECT_EQ(read->calls[3].shape->site(), "train.cc:88");
}

TEST_F(TraceReaderTest, AnEndThatIsMissingIsTold) {
  const string whole = Trace();
  const absl::StatusOr<TraceContents> read = ReadBytes(whole.substr(0, whole.size() - 10));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->cut);
  EXPECT_THAT(read->calls, SizeIs(2));
}

TEST_F(TraceReaderTest, DamageIsAnErrorThatSaysWhere) {
  string bytes = Trace();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
  const absl::Status damaged = ReadBytes(bytes).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(string(damaged.message()), HasSubstr("job.pftrace is damaged"));
}

TEST_F(TraceReaderTest, ALaterVersionIsRefused) {
  packets_.Begin(100, 2'000'000);
  v1::TraceFile file, inside;
  ASSERT_TRUE(file.ParseFromString(packets_.Take()));
  ASSERT_TRUE(inside.ParseFromString(Uncompress(file.packet(0).compressed_packets(), 1u << 20).value()));
  bool changed = false;
  for (v1::TracePacket& packet : *inside.mutable_packet()) {
    for (v1::DebugAnnotation& argument : *packet.mutable_track_event()->mutable_debug_annotations()) {
      argument.set_uint_value(kTraceFormat + 1);
      changed = true;
    }
  }
  ASSERT_TRUE(changed);
  file.mutable_packet(0)->set_compressed_packets(Compress(inside.SerializeAsString()));
  const absl::Status later = ReadBytes(file.SerializeAsString()).status();
  EXPECT_TRUE(absl::IsUnimplemented(later)) << later;
  EXPECT_THAT(string(later.message()), HasSubstr("of format 2 where this one knows 1; use the dlaunch that wrote it"));
}

TEST_F(TraceReaderTest, OtherFilesAreNoTraces) {
  v1::TraceFile foreign;  // Perfetto's, of somebody else
  foreign.add_packet()->mutable_track_descriptor()->set_name("CPU 0");
  for (const string& bytes : {string(), string("{\"traceEvents\": []}"), string("\x0a"), foreign.SerializeAsString(),
                              string(1000, '\x0a'), string(100, '\xff')}) {
    const absl::Status refused = ReadBytes(bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused) || absl::IsDataLoss(refused)) << refused << " " << bytes.size();
  }
}

TEST_F(TraceReaderTest, BytesThatMeanNothingDoNoHarm) {
  const string whole = Trace();
  v1::TraceFile file;
  ASSERT_TRUE(file.ParseFromString(whole));
  const string inside = Uncompress(file.packet(0).compressed_packets(), 1u << 20).value();
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    string outer = whole, inner = inside;
    for (int change = 0; change < 3; ++change) {
      outer[random() % outer.size()] = static_cast<char>(random());
      inner[random() % inner.size()] = static_cast<char>(random());
    }
    (void)ReadBytes(outer);
    v1::TraceFile changed;
    changed.add_packet()->set_compressed_packets(Compress(inner));
    (void)ReadBytes(changed.SerializeAsString());
  }
}

// One text that events name again and again is a small file, and much memory.
TEST_F(TraceReaderTest, ATraceOfEndlessTextsIsRefused) {
  v1::TraceFile whole;
  ASSERT_TRUE(whole.ParseFromString(Trace()));
  v1::TraceFile texts, event;
  v1::InternedText& text = *texts.add_packet()->mutable_interned_data()->add_debug_annotation_string_values();
  text.set_iid(4711);
  text.set_text(string(600'000, 'x'));
  v1::TrackEvent& one = *event.add_packet()->mutable_track_event();
  for (uint64_t name = 1; name <= 2; ++name) {
    one.add_debug_annotations()->set_name_iid(name);
    one.mutable_debug_annotations(static_cast<int>(name) - 1)->set_string_value_iid(4711);
  }
  EXPECT_TRUE(ReadBytes(whole.SerializeAsString() + texts.SerializeAsString()).ok());
  const absl::Status event_status =
      ReadBytes(whole.SerializeAsString() + texts.SerializeAsString() + event.SerializeAsString()).status();
  EXPECT_TRUE(absl::IsDataLoss(event_status)) << event_status;
  string many = whole.SerializeAsString();
  v1::TraceFile inside;
  for (uint64_t iid = 1; iid <= 30; ++iid) {
    v1::InternedText& long_text = *inside.add_packet()->mutable_interned_data()->add_event_names();
    long_text.set_iid(iid);
    long_text.set_text(string(1u << 20, 'y'));
  }
  v1::TraceFile piece;
  piece.add_packet()->set_compressed_packets(Compress(inside.SerializeAsString()));
  for (int i = 0; i < 10; ++i) many += piece.SerializeAsString();
  const absl::Status many_status = ReadBytes(many).status();
  EXPECT_TRUE(absl::IsDataLoss(many_status)) << many_status;
}

TEST_F(TraceReaderTest, FilesThatCannotBeReadAreNamed) {
  EXPECT_TRUE(absl::IsNotFound(ReadTraceFile("/nowhere/job.pftrace").status()));
  EXPECT_THAT(string(ReadTraceFile("/tmp").status().message()), HasSubstr("/tmp is no plain file"));
  // A descriptor of this process has a path that means nothing to anybody.
  std::ofstream(folder_ + "/job.pftrace") << "no trace";
  for (const string path : {"/job.pftrace", "/none"}) {
    const string error(ReadTraceFile(folder_ + path, "the file of the job").status().message());
    EXPECT_THAT(error, HasSubstr("the file of the job"));
    EXPECT_THAT(error, Not(HasSubstr(folder_)));
  }
}

}  // namespace
}  // namespace cohort::launcher
