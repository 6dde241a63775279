#include "launcher/agent/line_splitter.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cohort::launcher
