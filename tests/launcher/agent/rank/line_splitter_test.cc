#include "cohort/launcher/agent/rank/line_splitter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using Lines = std::vector<std::pair<std::string, bool>>;

// However a stream arrives in pieces: nothing lost, nothing added, no part above the limit, only real line ends end.
TEST(LineSplitter, GivesBackEveryStreamHoweverItIsCut) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    std::string stream;
    for (int i = random() % 12; i > 0; --i) {
      const size_t length = random() % 4 == 0 ? kMaxLineBytes - 2 + random() % 5 : random() % 50;
      stream += std::string(length, static_cast<char>('a' + random() % 26));
      if (random() % 8 != 0) stream += '\n';
    }
    Lines lines;
    LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
    for (size_t at = 0; at < stream.size();) {
      const size_t piece = 1 + random() % (random() % 2 == 0 ? 10 : 100'000);
      splitter.Append(std::string_view(stream).substr(at, piece));
      at += piece;
    }
    splitter.Finish();
    std::string joined;
    for (const auto& [text, partial] : lines) {
      EXPECT_LE(text.size(), kMaxLineBytes);
      EXPECT_EQ(text.find('\n'), std::string::npos);
      joined += text + (partial ? "" : "\n");
    }
    EXPECT_EQ(joined, stream);
  }
}

TEST(LineSplitter, PassesOnEmptyLinesAndAnUnfinishedEnd) {
  Lines lines;
  LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
  splitter.Append("\n\na");
  EXPECT_EQ(lines, (Lines{{"", false}, {"", false}}));
  splitter.Finish();
  splitter.Finish();
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines.back(), std::pair(std::string("a"), true));
}

// As a terminal shows them, however they arrive.
TEST(LineSplitter, LinesThatBeginAgainShowTheirLatestState) {
  const std::string stream = "plain\n\rstep 1\rstep 2\rstep 3\nloss 1\rloss 2\r\ndos\r\n\r\n50 %\r60 %";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    Lines lines;
    LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
    for (size_t at = 0; at < stream.size(); at += piece) {
      splitter.Append(std::string_view(stream).substr(at, piece));
    }
    EXPECT_EQ(splitter.progress(), "60 %");
    splitter.Finish();
    EXPECT_EQ(
        lines,
        (Lines{
            {"plain", false}, {"step 3", false}, {"loss 2\r", false}, {"dos\r", false}, {"\r", false}, {"60 %", true}}))
        << "pieces of " << piece;
  }
}

// As programs write them to a terminal's other end, or with ends of lines of Windows there.
TEST(LineSplitter, ReturnsAtTheEndOfALineDropNothing) {
  const std::string stream = "abc\r\r\nold\rnew\r\r\r\n\r\r\nx\r\r\rdef\r\r\n50 %\r\r";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    Lines lines;
    LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
    for (size_t at = 0; at < stream.size(); at += piece) {
      splitter.Append(std::string_view(stream).substr(at, piece));
    }
    EXPECT_EQ(splitter.progress(), "50 %");
    EXPECT_EQ(lines, (Lines{{"abc\r\r", false}, {"new\r\r\r", false}, {"\r\r", false}, {"def\r\r", false}}))
        << "pieces of " << piece;
  }
}

TEST(LineSplitter, KeepsReturnsWhereItIsTold) {
  std::string stream("a\rb\n\r\r\0\xff\rend\r", 13);
  stream += std::string(100'000, 'x') + "\r";
  for (const size_t piece : {1, 3, 1000, 1'000'000}) {
    std::string joined;
    LineSplitter splitter([&](std::string_view text, bool partial) { (joined += text) += partial ? "" : "\n"; },
                          LineSplitter::Returns::kKeep);
    for (size_t at = 0; at < stream.size(); at += piece) {
      splitter.Append(std::string_view(stream).substr(at, piece));
      splitter.PassOnText();
      EXPECT_EQ(joined.size(), std::min(stream.size(), at + piece));
    }
    splitter.Finish();
    EXPECT_EQ(joined, stream);
  }
}

TEST(LineSplitter, PassesOnAPromptWhenItIsTold) {
  Lines lines;
  LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
  splitter.Append("step 1\nName? ");
  EXPECT_TRUE(splitter.holds_text());
  splitter.PassOnText();
  EXPECT_FALSE(splitter.holds_text());
  splitter.PassOnText();
  splitter.Append("Bob\n\r10 %");
  EXPECT_FALSE(splitter.holds_text()) << "progress is no prompt";
  splitter.PassOnText();
  EXPECT_EQ(lines, (Lines{{"step 1", false}, {"Name? ", true}, {"Bob", false}}));
}

// Text that was shown as a prompt turns out to be the first state of a bar.
TEST(LineSplitter, APromptThatWasPassedOnIsALineWhereItBeginsAgain) {
  Lines lines;
  LineSplitter splitter([&](std::string_view text, bool partial) { lines.emplace_back(text, partial); });
  splitter.Append("10 ");
  splitter.PassOnText();
  splitter.Append("%\r20 %");
  EXPECT_EQ(splitter.progress(), "20 %");
  splitter.Append("\r30 %\n");
  EXPECT_EQ(lines, (Lines{{"10 ", true}, {"%", false}, {"30 %", false}}));
}

TEST(LineSplitter, OnlyALineThatBeganAgainIsProgress) {
  LineSplitter splitter([](std::string_view, bool) {});
  splitter.Append("name? ");
  EXPECT_EQ(splitter.progress(), "");
  splitter.Append("x\n10 %\r");
  EXPECT_EQ(splitter.progress(), "10 %");
  splitter.Append("20");
  EXPECT_EQ(splitter.progress(), "20");
  splitter.Append(" %\nnext");
  EXPECT_EQ(splitter.progress(), "");
}

}  // namespace
}  // namespace cohort::launcher
