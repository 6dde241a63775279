// Tapes as files: what was written is read again, and what is damaged is refused.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdio>
#include <thread>

#include "cohort/runtime/tape/call_prediction.h"
#include "tests/runtime/tape/tape_folder.h"

namespace cohort::runtime {
namespace {

using std::string;
using ::testing::ElementsAre;

TEST_F(TapeTest, EventsComeInTheirOrder) {
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord first = RecordAt("a.cc:1"), second = RecordAt("b.cc:2");
    Call(*writer, group, first, "one");
    const uint64_t early = writer->Begin({.group = group, .record = &first, .count = 4, .input = 9, .received = 4});
    const uint64_t late = Begin(*writer, group, second, 5);
    const string results[] = {"four", "fives"};
    const MemoryPiece pieces[] = {{results[1].data(), 2}, {results[1].data() + 2, 3}};
    writer->End(late, pieces);
    End(*writer, early, results[0]);
    writer->Fail(group, absl::UnavailableError("rank 0 is gone"));
    writer->AddLookup({.key = "key", .found = true, .value = "value"});
    writer->Step(8, false);
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  ASSERT_EQ(contents.calls.size(), 3u);
  EXPECT_EQ(TextIn(contents.calls[0].result), "one");
  EXPECT_EQ(TextIn(contents.calls[1].result), "four");
  EXPECT_EQ(TextIn(contents.calls[2].result), "fives");
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
  EXPECT_EQ(contents.ending, TapeEnding::kInOrder);
  EXPECT_FALSE(contents.several_threads);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// Bytes of the tape beside those received, for each call.
double Overhead(const TapeContents& contents) {
  return static_cast<double>(contents.bytes - contents.received) / static_cast<double>(contents.calls.size());
}

TEST_F(TapeTest, CallsThatRepeatTakeAFewBytesEach) {
  constexpr uint64_t kRounds = 2000;
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord loss = RecordAt("a.cc:1");
    for (uint64_t i = 0; i < kRounds; ++i) {
      Call(*writer, group, loss, "lossloss");
      Call(*writer, group, RecordAt("b.cc:2", 7 + i), string(48, 'x'));
    }
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  ASSERT_EQ(contents.calls.size(), 2 * kRounds);
  for (uint64_t i = 0; i < kRounds; ++i) {
    EXPECT_EQ(TextIn(contents.calls[2 * i].result), "lossloss");
    EXPECT_EQ(contents.calls[2 * i + 1].tag, 7 + i);
  }
  EXPECT_LT(Overhead(contents), 4.5);
}

// One step of a small model: its loss and gradient norm, activations that pass between layers, and two buckets of
// gradients under way at a time, tagged by bucket and iteration.
TEST_F(TapeTest, TapesTakeAtMostATwentiethMoreThanWasReceived) {
  constexpr uint64_t kSteps = 200;
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (int layer = 0; layer < 4; ++layer) Call(*writer, group, RecordAt("layer.cc:1"), string(192, 'a'));
      const uint64_t first = Begin(*writer, group, RecordAt("bucket.cc:2", step), 400);
      const uint64_t second = Begin(*writer, group, RecordAt("bucket.cc:2", uint64_t{1} << 32 | step), 300);
      End(*writer, first, string(400, 'b'));
      End(*writer, second, string(300, 'c'));
      Call(*writer, group, RecordAt("norm.cc:3"), string(8, 'd'));
      Call(*writer, group, RecordAt("loss.cc:4"), string(4, 'e'));
    }
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  ASSERT_EQ(contents.calls.size(), 8 * kSteps);
  EXPECT_EQ(contents.received, 1480 * kSteps);
  EXPECT_EQ(TextIn(contents.calls[8 * kSteps - 3].result), string(300, 'c'));
  EXPECT_EQ(contents.calls[8 * kSteps - 3].tag, uint64_t{1} << 32 | (kSteps - 1));
  EXPECT_LE(static_cast<double>(contents.bytes), 1.05 * static_cast<double>(contents.received));
  std::printf("%.2f bytes beside its result for a call\n", Overhead(contents));
}

TEST_F(TapeTest, CountsThatAlwaysChangeAreReadAgain) {
  constexpr int64_t kCalls = 3 * int64_t{kMostShapes} + 5;
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    for (int64_t i = 0; i < kCalls; ++i) {
      const int64_t in[] = {i, 1}, out[] = {2, i % 50};
      const uint64_t call = writer->Begin({.group = group,
                                           .record = &record,
                                           .received = static_cast<uint64_t>(i % 50),
                                           .unequal = true,
                                           .in_counts = in,
                                           .out_counts = out});
      End(*writer, call, string(static_cast<size_t>(i % 50), 'x'));
      if (i % 3 == 0) Call(*writer, group, record, "same");
    }
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  int64_t i = 0;
  for (const TapedCall& call : (*tape)->contents().calls) {
    if (!call.unequal) {
      EXPECT_EQ(TextIn(call.result), "same");
      continue;
    }
    const auto counts = CountsOf(call);
    ASSERT_TRUE(counts.has_value());
    EXPECT_THAT(counts->in, ElementsAre(i, 1));
    EXPECT_THAT(counts->out, ElementsAre(2, i % 50));
    EXPECT_EQ(call.result.size(), static_cast<size_t>(i % 50));
    ++i;
  }
  EXPECT_EQ(i, kCalls);
}

TEST_F(TapeTest, CallsOfSeveralThreadsAreKnownAsSuch) {
  {
    auto writer = Create();
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    Call(*writer, group, RecordAt("a.cc:1"), "mine");
    std::thread([&] { Call(*writer, group, RecordAt("b.cc:2"), "yours"); }).join();
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  EXPECT_TRUE((*tape)->contents().several_threads);
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
  EXPECT_EQ(TextIn(contents.calls.front().result), "setup");
  EXPECT_EQ(TextIn(contents.calls.back().result), "102");
  EXPECT_GE(contents.steps.size(), 5u);
  EXPECT_LE(contents.steps.size(), 10u);
  EXPECT_EQ(TextIn(contents.calls[1].result), std::to_string(contents.steps.front().step));
  EXPECT_EQ(contents.left_out, contents.steps.front().step);
}

TEST_F(TapeTest, AResultMayComeInALaterPart) {
  TapeHead head = HeadOf(3);
  head.keep_steps = 1;
  {
    auto writer = Create(head);
    const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
    const CallRecord record = RecordAt("a.cc:1");
    const uint64_t early = Begin(*writer, group, record, 5);
    for (uint64_t step = 0; step < 4; ++step) {
      writer->Step(step, false);
      const uint64_t late = Begin(*writer, group, record, 4);
      if (step == 0) End(*writer, early, "early");
      writer->Step(step + 10, false);
      End(*writer, late, "late");
    }
    writer->Finish();
  }
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const TapeContents& contents = (*tape)->contents();
  EXPECT_EQ(contents.ending, TapeEnding::kInOrder);
  EXPECT_FALSE(contents.calls.front().done) << "its result was in a part that is gone";
  EXPECT_EQ(TextIn(contents.calls.back().result), "late");
}

TEST(CallPredictionTest, TellsShapesAndTagsThatComeInTurn) {
  CallPrediction prediction;
  EXPECT_EQ(prediction.shape(), 0u);
  for (uint64_t i = 0; i < 4; ++i) {
    prediction.Add(0, 5);
    prediction.Add(3, 100 + 10 * i);
  }
  EXPECT_EQ(prediction.shape(), 0u);
  EXPECT_EQ(prediction.TagOf(0), 5u);
  EXPECT_EQ(prediction.TagOf(3), 140u);
  EXPECT_EQ(prediction.TagOf(9), 0u);
  prediction.Add(0, 5);
  EXPECT_EQ(prediction.shape(), 3u);
  prediction.Clear();
  EXPECT_EQ(prediction.TagOf(3), 0u);
}

}  // namespace
}  // namespace cohort::runtime
