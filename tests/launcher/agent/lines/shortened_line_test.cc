#include "cohort/launcher/agent/lines/shortened_line.h"

#include <gtest/gtest.h>

#include <string>

namespace cohort::launcher {
namespace {

TEST(ShortenedLine, KeepsShortLinesAsTheyAre) {
  for (const size_t length : {0, 1, 99, 100}) {
    const std::string text(length, 'x');
    EXPECT_EQ(ShortenMiddle(text, 100), text);
  }
}

TEST(ShortenedLine, KeepsBothEndsOfALongLineHoweverItComes) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += std::to_string(i) + " ";
  const std::string expected = text.substr(0, 20) + " ... [" + std::to_string(text.size() - 40) +
                               " bytes left out] ... " + text.substr(text.size() - 20);
  for (const size_t piece : {1, 7, 39, 5000, 1'000'000}) {
    ShortenedLine line(40);
    for (size_t at = 0; at < text.size(); at += piece) line.Append(std::string_view(text).substr(at, piece));
    EXPECT_EQ(line.Text(), expected) << piece;
    EXPECT_EQ(line.length(), text.size());
  }
}

TEST(ShortenedLine, CutsBetweenCharacters) {
  const std::string text = ShortenMiddle("aäöüäöüäöüäöüäöüäöüb", 8);
  EXPECT_EQ(text, "aä ... [32 bytes left out] ... üb");
}

TEST(ShortenedLine, AReturnBeginsALineAgain) {
  for (const size_t piece : {1, 2, 100}) {
    const std::string text = "\r10 %\r20 %\r\r30 %\r";
    ShortenedLine line(100);
    for (size_t at = 0; at < text.size(); at += piece) line.Append(std::string_view(text).substr(at, piece));
    EXPECT_EQ(line.Text(), "30 %");
    EXPECT_TRUE(line.drawn_over());
    line.Clear();
    line.Append("of Windows\r");
    EXPECT_EQ(line.Text(), "of Windows");
    EXPECT_FALSE(line.drawn_over());
  }
}

}  // namespace
}  // namespace cohort::launcher
