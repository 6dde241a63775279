#include "cohort/launcher/agent/lines/last_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

constexpr bool kOutput = false;
constexpr bool kError = true;
constexpr auto kAtOnce = LastLines::Clock::time_point();

class LastLinesTest : public testing::Test {
 protected:
  void Print(bool is_error, const std::string& text, size_t other_waits = 0,
             LastLines::Clock::time_point at = kAtOnce) {
    lines_.Append(is_error, text, other_waits, at);
  }
  bool Has(const std::string& text) const {
    const std::vector<std::string> lines = lines_.Lines();
    return std::find(lines.begin(), lines.end(), text) != lines.end();
  }
  LastLines lines_;
};

TEST_F(LastLinesTest, KeepsTheLastOfBothStreamsInOrder) {
  Print(kOutput, "step 1\nstep ");
  Print(kError, "no tensor\n");
  Print(kOutput, "2\nunfinished");
  EXPECT_EQ(lines_.Lines(), (std::vector<std::string>{"step 1", "no tensor", "step 2", "unfinished"}));
  lines_.Clear();
  EXPECT_TRUE(lines_.Lines().empty());
  EXPECT_EQ(lines_.Words(), "");
}

TEST_F(LastLinesTest, ALongLineIsShortenedAndTheNextIsWhole) {
  for (int i = 0; i < 1024; ++i) Print(kOutput, std::string(1024, 'x'));
  Print(kOutput, "\ngiving up\n");
  ASSERT_EQ(lines_.Lines().size(), 2u);
  EXPECT_NE(lines_.Lines()[0].find("bytes left out"), std::string::npos);
  EXPECT_LT(lines_.Lines()[0].size(), 2100u);
  EXPECT_EQ(lines_.Words(), "giving up");
}

// However a flood is read.
TEST_F(LastLinesTest, AFloodBeforeTheErrorKeepsTheErrorLast) {
  std::string flood;
  for (int i = 0; i < 200'000; ++i) flood += "warning " + std::to_string(i) + "\n";
  for (const size_t piece : {65'536, 1000, 10'000'000}) {
    lines_ = LastLines();
    for (size_t at = 0; at < flood.size(); at += piece) Print(kOutput, flood.substr(at, piece));
    Print(kOutput, "no licence file\n");
    EXPECT_EQ(lines_.Lines().size(), LastLines::kLines);
    EXPECT_EQ(lines_.Lines().back(), "no licence file") << piece;
    EXPECT_EQ(lines_.Lines().front(), "warning " + std::to_string(200'001 - LastLines::kLines));
    EXPECT_EQ(lines_.Words(), "no licence file");
  }
}

// The error is read while much of the flood still lies in the other pipe.
TEST_F(LastLinesTest, TheErrorComesAfterAFloodThatWaitsInTheOtherPipe) {
  for (const bool flood_is : {kOutput, kError}) {
    lines_ = LastLines();
    std::string flood;
    while (flood.size() < 60'000) flood += "retrying\n";
    Print(flood_is, flood);
    Print(!flood_is, "no licence file\n", flood.size());
    Print(flood_is, flood);
    EXPECT_EQ(lines_.Lines().back(), "no licence file");
    EXPECT_EQ(lines_.Words(), "no licence file");
  }
}

TEST_F(LastLinesTest, ManyLinesOfOutputDoNotPushTheErrorOut) {
  Print(kError, "no licence file\n");
  for (int i = 0; i < 200; ++i) Print(kOutput, "flushed by the end\n");
  EXPECT_TRUE(Has("no licence file"));
  EXPECT_EQ(lines_.Words(), "no licence file");
}

TEST_F(LastLinesTest, OutputThatIsClearlyLaterIsTheLastWord) {
  Print(kError, "NCCL version 2.20\n");
  Print(kOutput, "no licence file\n", 0, kAtOnce + std::chrono::seconds(10));
  EXPECT_EQ(lines_.Words(), "no licence file");
  lines_ = LastLines();
  Print(kError, "a.py:1: UserWarning: slow\n");
  Print(kOutput, "no licence file\n");
  EXPECT_EQ(lines_.Words(), "no licence file");
}

// The rest of a log on the standard error is read after the line of output that follows it, and is short.
TEST_F(LastLinesTest, AnErrorOnTheOutputComesAfterALogOnTheStandardError) {
  for (const std::string& rest : {std::string(), std::string("retrying\n")}) {
    lines_ = LastLines();
    for (int i = 0; i < 1000; ++i) Print(kError, "retrying\n");
    Print(kOutput, "no licence file\n", rest.size());
    if (!rest.empty()) Print(kError, rest);
    EXPECT_EQ(lines_.Words(), "no licence file");
    Print(kError, "giving up\n");
    EXPECT_EQ(lines_.Words(), "giving up");
  }
}

TEST_F(LastLinesTest, LinesWithoutWordsAreNotTheLast) {
  Print(kError, "no licence file\n\n  \n\x1b[0m\n-----\n\r 10%|#  |\r 20%|## |");
  EXPECT_EQ(lines_.Words(), "no licence file");
  EXPECT_EQ(lines_.Lines().back(), " 20%|## |");
  lines_ = LastLines();
  Print(kError, "giving up");
  EXPECT_EQ(lines_.Words(), "giving up") << "without its newline";
  lines_ = LastLines();
  Print(kError, std::string(5000, 'y') + "\n");
  EXPECT_LT(lines_.Words().size(), 400u);
}

}  // namespace
}  // namespace cohort::launcher
