#include "cohort/launcher/commands/trace/unjoined_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(UnjoinedRanksTest, NativeFramesAreLeftOutOfWhatAProcessDoes) {
  EXPECT_THAT(DoingOf("  python3 sleeps in futex\n  Python thread 1, most recent call first:\n"
                      "    File \"/x/train.py\", line 3 in load\n  native stacks:\n    0x1 main\n"),
              ElementsAre("python3 sleeps in futex",
                          "Python thread 1, most recent call first:", "  File \"/x/train.py\", line 3 in load"));
  EXPECT_THAT(DoingOf(""), IsEmpty());
  EXPECT_THAT(DoingOf("  sh sleeps in wait4"), ElementsAre("sh sleeps in wait4"));
}

// Beside a dlaunch top that asks each second, a rank may have joined since its agent's latest view.
TEST(UnjoinedRanksTest, AViewFromBeforeTheQuestionIsNoNews) {
  const std::chrono::milliseconds since_asked(100);
  v1::JobRank rank;
  EXPECT_FALSE(IsNews(rank, since_asked)) << "its agent has told nothing";
  rank.set_known(true);
  rank.set_ago_ms(1900);
  EXPECT_FALSE(IsNews(rank, since_asked));
  rank.set_ago_ms(100);
  EXPECT_FALSE(IsNews(rank, since_asked)) << "it is rounded down";
  rank.set_ago_ms(99);
  EXPECT_TRUE(IsNews(rank, since_asked));
  rank.set_ago_ms(0);
  EXPECT_FALSE(IsNews(rank, std::chrono::milliseconds(0))) << "no time has passed in which it could answer";
}

TEST(UnjoinedRanksTest, ALongTextIsCutAndCannotSteerATerminal) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "  \x1b[2J\n";
  const std::vector<std::string> lines = DoingOf(text);
  EXPECT_THAT(lines, SizeIs(13));
  EXPECT_EQ(lines[0], "\\x1b[2J");
  EXPECT_EQ(lines.back(), "...");
}

}  // namespace
}  // namespace cohort::launcher
