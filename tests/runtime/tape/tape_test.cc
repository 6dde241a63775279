// Tapes as files: what was written is read again, and what is damaged is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cohort/runtime/tape/tape_reader.h"
#include "cohort/runtime/tape/tape_writer.h"
#include "cohort/v1/agent.pb.h"

namespace cohort::runtime {
namespace {

using std::string;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TapeHead HeadOf(int rank) {
  v1::Welcome welcome;
  welcome.set_rank(static_cast<uint32_t>(rank));
  welcome.set_world_size(4);
  welcome.set_epoch(1);
  TapeHead head;
  head.version = COHORT_VERSION;
  head.id = 77;
  head.rank = rank;
  head.welcome = welcome.SerializeAsString();
  head.environment = {"RANK=3"};
  return head;
}

CallRecord RecordAt(const string& site) {
  CallRecord record;
  record.signature.kind = 3;
  record.signature.dtype = 11;
  record.signature.op = 1;
  std::memcpy(record.site, site.data(), site.size());
  return record;
}

class TapeTest : public ::testing::Test {
 protected:
  TapeTest() {
    string name = (std::filesystem::temp_directory_path() / "tape_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/rank-3.epoch-1.tape";
  }
  ~TapeTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<TapeWriter> Create(TapeHead head = HeadOf(3)) {
    auto writer = TapeWriter::Create(folder_, "rank-3.epoch-1.tape", head);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  // A call that is done at once.
  static void Call(TapeWriter& writer, uint32_t group, const CallRecord& record, const string& result) {
    const uint64_t call = writer.Begin({.group = group, .record = &record, .count = result.size()});
    const MemoryPiece piece{result.data(), result.size()};
    writer.End(call, {&piece, 1});
  }
  static string Text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  string FileText() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Replace(const string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  // A tape of some calls, which has ended in order.
  void WriteSome() {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    for (int i = 0; i < 20; ++i) Call(*writer, group, record, string(static_cast<size_t>(i * 7), 'x'));
    writer->AddLookup({.key = "key", .found = true, .value = "value"});
    writer->Finish();
  }

  string folder_, path_;
};

TEST_F(TapeTest, EventsComeInTheirOrder) {
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord first = RecordAt("a.cc:1"), second = RecordAt("b.cc:2");
    Call(*writer, group, first, "one");
    const uint64_t early = writer->Begin({.group = group, .record = &first, .count = 4, .input = 9});
    const uint64_t late = writer->Begin({.group = group, .record = &second, .count = 5});
    const string results[] = {"four", "fives"};
    const MemoryPiece pieces[] = {{results[1].data(), 2}, {results[1].data() + 2, 3}};
    writer->End(late, pieces);
    const MemoryPiece piece{results[0].data(), 4};
    writer->End(early, {&piece, 1});
    writer->Fail(group, absl::UnavailableError("rank 0 is gone"));
    writer->AddLookup({.key = "key", .found = true, .value = "value"});
    writer->Step(8, false);
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  ASSERT_EQ(contents.calls.size(), 3u);
  EXPECT_EQ(Text(contents.calls[0].result), "one");
  EXPECT_EQ(Text(contents.calls[1].result), "four");
  EXPECT_EQ(Text(contents.calls[2].result), "fives");
  EXPECT_EQ(contents.calls[1].input, 9);
  EXPECT_STREQ(contents.RecordOf(contents.calls[2]).site, "b.cc:2");
  EXPECT_EQ(contents.RecordOf(contents.calls[2]).signature.group, 5u);
  EXPECT_THAT(contents.groups.begin()->second.members, ElementsAre(0, 3));
  std::vector<size_t> order;
  for (const TapeEvent& event : contents.events) {
    if (event.kind == TapeEvent::Kind::kResult) order.push_back(event.index);
  }
  EXPECT_THAT(order, ElementsAre(0, 2, 1));
  EXPECT_EQ(contents.events.back().kind, TapeEvent::Kind::kFailure);
  EXPECT_EQ(contents.failures[0].status.message(), "rank 0 is gone");
  EXPECT_EQ(contents.lookups[0].value, "value");
  EXPECT_EQ(contents.steps[0].step, 8u);
  EXPECT_THAT(contents.head.environment, ElementsAre("RANK=3"));
  EXPECT_TRUE(contents.ended);
  EXPECT_FALSE(contents.several_threads);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(TapeTest, FilesAreHardlyLongerThanTheBytesReceived) {
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    for (int i = 0; i < 500; ++i) Call(*writer, group, record, string(2048, 'x'));
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  EXPECT_LE(static_cast<double>((*tape)->contents().bytes), 1.05 * static_cast<double>((*tape)->contents().received));
}

TEST_F(TapeTest, EveryCutIsReadUpToItOrRefused) {
  WriteSome();
  const string whole = FileText();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Replace(whole.substr(0, bytes));
    const auto tape = OpenTape::Open(path_);
    if (!tape.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(tape.status())) << tape.status();
      EXPECT_THAT(string(tape.status().message()), HasSubstr("is damaged at byte"));
      continue;
    }
    EXPECT_FALSE((*tape)->contents().ended);
    for (size_t i = 0; i < (*tape)->contents().calls.size(); ++i) {
      EXPECT_EQ(Text((*tape)->contents().calls[i].result), string(i * 7, 'x'));
    }
  }
}

TEST_F(TapeTest, EveryFlippedBitIsFoundBeforeAnythingIsReplayed) {
  WriteSome();
  const string whole = FileText();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    TapeContents contents;
    if (!AddTapeFile(std::as_bytes(std::span(damaged)), "a tape", &contents).ok()) continue;
    // The last entry alone may look as if its writer had been killed.
    EXPECT_TRUE(contents.cut) << bit;
    EXPECT_EQ(contents.calls.size(), 20u) << bit;
  }
}

TEST_F(TapeTest, RandomBytesAreRefused) {
  WriteSome();
  const string whole = FileText();
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    string damaged = whole;
    for (uint64_t left = 1 + random() % 8; left > 0; --left)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.insert(random() % damaged.size(), string(random() % 40, '\xff'));
    TapeContents contents;
    (void)AddTapeFile(std::as_bytes(std::span(damaged)), "a tape", &contents);
  }
}

TEST_F(TapeTest, AnotherVersionIsNamed) {
  TapeHead head = HeadOf(3);
  head.version = "9.9.9";
  Create(head).reset();
  const auto tape = OpenTape::Open(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(tape.status()));
  EXPECT_THAT(string(tape.status().message()), HasSubstr("Cohort 9.9.9 wrote it"));
  EXPECT_THAT(string(tape.status().message()), HasSubstr("replay it with the version that wrote it"));
}

TEST_F(TapeTest, KeepsTheLatestStepsAndTheBeginning) {
  TapeHead head = HeadOf(3);
  head.keep_steps = 5;
  {
    auto writer = Create(head);
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    Call(*writer, group, record, "setup");
    for (uint64_t step = 0; step < 103; ++step) {
      writer->Step(step, false);
      Call(*writer, group, record, std::to_string(step));
    }
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  EXPECT_EQ(Text(contents.calls.front().result), "setup");
  EXPECT_EQ(Text(contents.calls.back().result), "102");
  EXPECT_GE(contents.steps.size(), 5u);
  EXPECT_LE(contents.steps.size(), 10u);
  EXPECT_EQ(Text(contents.calls[1].result), std::to_string(contents.steps.front().step));
  EXPECT_EQ(contents.left_out, contents.steps.front().step);
}

TEST_F(TapeTest, ALimitOnTheSizeEndsTheTapeAndNotTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    for (int i = 0; i < 100; ++i) Call(*writer, group, record, string(1000, 'x'));
    writer->Finish();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  EXPECT_GT((*tape)->contents().calls.size(), 10u);
  EXPECT_FALSE((*tape)->contents().ended);
}

TEST_F(TapeTest, AFolderThatCannotBeIsNamed) {
  std::ofstream(folder_ + "/file") << "";
  const auto writer = TapeWriter::Create(folder_ + "/file/sub", "rank-3.epoch-1.tape", HeadOf(3));
  EXPECT_THAT(string(writer.status().message()), HasSubstr("no tape can be written to " + folder_ + "/file/sub"));
}

}  // namespace
}  // namespace cohort::runtime
