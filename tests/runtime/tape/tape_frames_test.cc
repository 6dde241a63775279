// Tapes that are cut or damaged, or that another build wrote.
#include "cohort/runtime/tape/tape_frames.h"

#include <gmock/gmock.h>

#include <random>

#include "cohort/runtime/tape/memory_hash.h"
#include "cohort/v1/tape.pb.h"
#include "tests/runtime/tape/tape_folder.h"

namespace cohort::runtime {
namespace {

using std::string;
using ::testing::HasSubstr;
using TapeFramesTest = TapeTest;

TEST_F(TapeFramesTest, EveryCutIsReadUpToItOrRefused) {
  WriteSome();
  const string whole = FileText();
  size_t read = 0;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    TapeContents contents;
    const absl::Status status = AddTapeFile(std::as_bytes(std::span(whole.data(), bytes)), "a tape", &contents);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(string(status.message()), HasSubstr("the tape a tape is damaged at byte"));
      continue;
    }
    ++read;
    EXPECT_NE(contents.ending, TapeEnding::kInOrder);
    for (size_t i = 0; i < contents.calls.size(); ++i) {
      EXPECT_EQ(TextIn(contents.calls[i].result), ResultOf(i));
    }
  }
  EXPECT_GT(read, whole.size() / 2);
}

TEST_F(TapeFramesTest, EveryFlippedBitIsFoundBeforeAnythingIsReplayed) {
  WriteSome();
  const string whole = FileText();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    TapeContents contents;
    if (!AddTapeFile(std::as_bytes(std::span(damaged)), "a tape", &contents).ok()) continue;
    // The last entry alone may look as if its writer had been killed.
    EXPECT_EQ(contents.ending, TapeEnding::kCut) << bit;
    EXPECT_EQ(contents.calls.size(), 40u) << bit;
  }
}

TEST_F(TapeFramesTest, RandomBytesAreRefused) {
  WriteSome();
  const string whole = FileText();
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    string damaged = whole;
    for (uint64_t left = 1 + random() % 8; left > 0; --left)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.insert(random() % damaged.size(), string(random() % 40, '\xff'));
    if (damaged == whole) continue;
    TapeContents contents;
    const absl::Status read = AddTapeFile(std::as_bytes(std::span(damaged)), "a tape", &contents);
    EXPECT_TRUE(!read.ok() || contents.ending == TapeEnding::kCut) << "round " << round;
  }
}

// The pages that a machine had not written when it stopped are zero.
TEST_F(TapeFramesTest, ZerosAtTheEndAreACut) {
  WriteSome();
  const string whole = FileText();
  Replace(whole.substr(0, whole.size() / 2) + string(4096, '\0'));
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  EXPECT_EQ((*tape)->contents().ending, TapeEnding::kCut);
  EXPECT_GT((*tape)->contents().calls.size(), 5u);
}

TEST_F(TapeFramesTest, AnotherVersionIsNamed) {
  TapeHead head = HeadOf(3);
  head.version = "9.9.9";
  Create(head).reset();
  const auto tape = OpenTape::Open(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(tape.status()));
  EXPECT_THAT(string(tape.status().message()), HasSubstr("Cohort 9.9.9 wrote it"));
  EXPECT_THAT(string(tape.status().message()), HasSubstr("replay it with the version that wrote it"));
}

// A build of the same version: its head is read, and nothing behind it.
TEST_F(TapeFramesTest, AnotherFormatIsNamed) {
  v1::TapeHead head;
  ASSERT_TRUE(head.ParseFromString(EncodeTapeHead(HeadOf(3))));
  head.set_format(kTapeFormat + 1);
  const string body = head.SerializeAsString();
  string entry(1, static_cast<char>(TapeEntry::kHead));
  PutNumber(body.size(), &entry);
  entry += body;
  const auto check = static_cast<uint32_t>(HashMemory(entry.data(), entry.size()));
  entry.append(reinterpret_cast<const char*>(&check), sizeof check);
  Replace(string(kTapeMagic) + entry + "anything");
  const auto tape = OpenTape::Open(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(tape.status())) << tape.status();
  EXPECT_THAT(string(tape.status().message()),
              HasSubstr("wrote it in format " + std::to_string(kTapeFormat + 1) + ", and this is Cohort"));
}

}  // namespace
}  // namespace cohort::runtime
