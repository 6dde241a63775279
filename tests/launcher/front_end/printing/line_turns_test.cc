#include "cohort/launcher/front_end/printing/line_turns.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

namespace cohort::launcher {
namespace {

using Surroundings = LineTurns::Surroundings;

class LineTurnsTest : public testing::Test {
 protected:
  void SetUp() override {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
  }
  void TearDown() override {
    if (!ended_) (void)Output();
  }
  void Begin(const Surroundings& surroundings) {
    turns_ = std::make_unique<LineTurns>(&loop_, &printer_, surroundings);
  }
  void Print(uint32_t rank, const std::string& text, bool goes_on = false, int fd = STDOUT_FILENO) {
    turns_->Print({.fd = fd, .rank = rank, .text = text, .goes_on = goes_on});
  }
  // Lets timers of at most that fire.
  void Pass(std::chrono::milliseconds time) {
    loop_.After(time, [this] { loop_.Quit(); });
    loop_.Run();
  }
  // Returns all that has gone to the standard output, and ends the test.
  std::string Output() {
    EXPECT_TRUE(printer_.Finish(std::chrono::seconds(10)));
    ended_ = true;
    error_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }

  EventLoop loop_;
  OutputPrinter printer_{{.on_drained = [] {}, .on_closed = [](int, int) {}}};
  std::unique_ptr<LineTurns> turns_;
  std::string error_;
  bool ended_ = false;
};

// Only an error has an id, which it gets where it is made.
TEST_F(LineTurnsTest, AnAnnouncementIsPrintedAsItIs) {
  Begin({.prefix = true});
  turns_->Announce("rank 0 exited with code 1; its last line: \"no program given\"");
  EXPECT_EQ(Output(), "");
  EXPECT_EQ(error_, "dlaunch: rank 0 exited with code 1; its last line: \"no program given\"\n");
}

// A writer of a long line may stall wherever its pipe is full, and a part may be short.
TEST_F(LineTurnsTest, ALongLineWhoseWriterStallsStaysWhole) {
  Begin({.prefix = true});
  const std::string part(5000, 'x');
  Print(0, part, true);
  Print(0, "short", true);
  Print(1, "of another");
  Pass(2 * LineTurns::kPatience);
  Print(0, "end");
  EXPECT_EQ(Output(), "[0] " + part + "shortend\n[1] of another\n");
}

TEST_F(LineTurnsTest, AProgressBarOfManyReturnsIsNoLongLine) {
  Begin({.prefix = true});
  for (int k = 0; k < 100; ++k) Print(0, "\r" + std::string(80, '#'), true);
  Print(1, "of another");
  Pass(2 * LineTurns::kPatience);
  Print(1, "and more");
  EXPECT_TRUE(Output().ends_with("\n[1] of another\n[1] and more\n"));
}

TEST_F(LineTurnsTest, ALongLineInPartsHasOnePrefixAndNoneOfAnotherRankInIt) {
  Begin({.prefix = true});
  const std::string part(64 << 10, 'x');
  Print(0, part, true);
  Print(1, "of another");
  Print(0, part, true);
  Print(1, "and more");
  Print(0, "end");
  EXPECT_EQ(Output(), "[0] " + part + part + "end\n[1] of another\n[1] and more\n");
}

TEST_F(LineTurnsTest, APromptIsLeftAfterAMomentAndGoesOnWithAPrefix) {
  Begin({.prefix = true});
  Print(0, "Name? ", true);
  Print(1, "hello");
  Print(0, "(first) ", true);
  Pass(LineTurns::kPatience + std::chrono::milliseconds(50));
  Print(0, "Bob");
  Print(1, "bye");
  EXPECT_EQ(Output(), "[0] Name? (first) \n[1] hello\n[0] Bob\n[1] bye\n");
}

TEST_F(LineTurnsTest, PromptsOfManyRanksAreAllShown) {
  Begin({.prefix = true});
  for (uint32_t rank = 0; rank < 3; ++rank) Print(rank, "Name? ", true);
  Pass(2 * LineTurns::kPatience + std::chrono::milliseconds(100));
  for (uint32_t rank = 0; rank < 3; ++rank) Print(rank, "");  // their newlines
  EXPECT_EQ(Output(), "[0] Name? \n[1] Name? \n[2] Name? \n");
}

TEST_F(LineTurnsTest, StreamsOfOnePlaceAreKeptApart) {
  Begin({.prefix = true, .output_beside_error = true});
  Print(0, "Name? ", true);
  Print(0, "a warning", false, STDERR_FILENO);
  turns_->Say("dlaunch: a word\n");
  Print(0, "Bob");
  EXPECT_EQ(Output(), "[0] Name? [0] Bob\n");
  EXPECT_EQ(error_, "\n[0] a warning\ndlaunch: a word\n") << "the newline between them goes to the same place";
}

TEST_F(LineTurnsTest, OutputWithoutPrefixesIsAsItWasWritten) {
  Begin({.prefix = false, .output_beside_error = true});
  Print(0, "a", true);
  Print(0, "err", true, STDERR_FILENO);
  Print(0, "\rb");
  Print(0, std::string("\0\xff", 2), true);
  EXPECT_EQ(Output(), "a\rb\n" + std::string("\0\xff", 2));
  EXPECT_EQ(error_, "err");
}

TEST_F(LineTurnsTest, LinesOfRanksAreWholeWithoutPrefixes) {
  Begin({.prefix = false});
  Print(0, "{\"loss\": ", true);
  Print(1, "{}");
  Print(0, "0.5}");
  Print(0, "foo", true);
  Print(1, "foo", true);
  turns_->Flush();
  EXPECT_EQ(Output(), "{\"loss\": 0.5}\n{}\nfoofoo");
}

TEST_F(LineTurnsTest, LinesOnATerminalAreKeptApartWithoutPrefixes) {
  Begin({.prefix = false, .terminals = {false, true, true}});
  Print(0, "foo", true);
  Print(1, "bar");
  turns_->Flush();
  EXPECT_EQ(Output(), "foo\nbar\n");
}

TEST_F(LineTurnsTest, AnEchoedKeyBeginsALine) {
  Begin({.prefix = true, .terminals = {true, true, true}});
  Print(0, "Name? ", true);
  turns_->OnEcho();
  Print(0, "hello Bob");
  EXPECT_EQ(Output(), "[0] Name? [0] hello Bob\n") << "the terminal itself has printed a newline between them";
}

TEST_F(LineTurnsTest, WaitingOutputIsBounded) {
  Begin({.prefix = true});
  Print(0, "Name? ", true);
  const std::string line(1 << 20, 'x');
  for (int i = 0; i < 5; ++i) Print(1, line);
  const std::string out = Output();
  EXPECT_TRUE(out.starts_with("[0] Name? \n[1] xxx"));
  EXPECT_GT(out.size(), size_t{5} << 20);
}

TEST_F(LineTurnsTest, TheScreenKnowsLinesThatCameInParts) {
  Begin({.prefix = true, .output_beside_error = true});
  Print(1, "no ", true, STDERR_FILENO);
  Print(1, "tensor", false, STDERR_FILENO);
  EXPECT_TRUE(turns_->screen().Show(1, {"no tensor"}));
}

}  // namespace
}  // namespace cohort::launcher
