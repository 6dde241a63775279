#include "cohort/launcher/front_end/printing/screen_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using Lines = std::vector<std::string>;

TEST(ScreenLines, TheScreenShowsTheNewestLinesOfARank) {
  ScreenLines screen(/*output_beside_error=*/true);
  screen.Add({STDOUT_FILENO, 1, "step 1"});
  screen.Add({STDERR_FILENO, 1, "no tensor"});
  screen.Add({STDERR_FILENO, 0, "peer lost"});
  EXPECT_TRUE(screen.Show(1, {"step 1", "no tensor"}));
  EXPECT_TRUE(screen.Show(-1, {"no tensor"}));
  EXPECT_FALSE(screen.Show(0, {"no tensor"}));
  EXPECT_FALSE(screen.Show(1, {"step 1"})) << "it has printed something since";
  EXPECT_FALSE(screen.Show(1, {}));
  screen.Clear();
  EXPECT_FALSE(screen.Show(1, {"no tensor"}));
}

TEST(ScreenLines, OutputThatGoesElsewhereIsNotShown) {
  ScreenLines screen(/*output_beside_error=*/false);
  screen.Add({STDOUT_FILENO, 1, "no tensor"});
  EXPECT_FALSE(screen.Show(1, {"no tensor"}));
}

TEST(ScreenLines, LinesThatHaveScrolledAwayAreNotShown) {
  for (const std::string& other : {std::string("step"), std::string(500, 'x')}) {
    ScreenLines screen(/*output_beside_error=*/true);
    screen.Add({STDERR_FILENO, 1, "no tensor"});
    int added = 0;
    for (; screen.Show(1, {"no tensor"}) && added < 100; ++added) screen.Add({STDERR_FILENO, 0, other});
    EXPECT_GT(added, 1);
    EXPECT_LT(added, other.size() > 100 ? 6 : 30) << "long lines take several rows";
  }
}

TEST(ScreenLines, ShortenedLinesAreRecognized) {
  ScreenLines screen(/*output_beside_error=*/true);
  const std::string line(2100, 'x');
  screen.Add({STDERR_FILENO, 1, line, /*goes_on=*/true});
  screen.Add({STDERR_FILENO, 1, "yz"});
  EXPECT_TRUE(screen.Show(1, {ShortenMiddle(line + "yz", 2000)}));
  screen.Add({STDERR_FILENO, 1, "abc"});
  EXPECT_FALSE(screen.Show(1, {"ab"}));
}

TEST(HeldOutput, ReleasesOneRankAndThenTheOthersInOrder) {
  Lines printed;
  HeldOutput held([&](const RankLine& line) { printed.push_back(std::to_string(line.rank) + line.text); });
  held.Keep({STDERR_FILENO, 0, "a"});
  held.Keep({STDERR_FILENO, 1, "b"});
  held.Keep({STDOUT_FILENO, 0, "c"});
  held.ReleaseOf(1);
  EXPECT_TRUE(held.holding());
  EXPECT_EQ(printed, (Lines{"1b"}));
  held.Release();
  EXPECT_FALSE(held.holding());
  EXPECT_EQ(printed, (Lines{"1b", "0a", "0c"}));
}

TEST(HeldOutput, HeldOutputIsBounded) {
  size_t printed = 0;
  HeldOutput held([&](const RankLine&) { ++printed; });
  for (int i = 0; i < 200 && held.holding(); ++i) held.Keep({STDERR_FILENO, 0, std::string(1 << 16, 'x')});
  EXPECT_FALSE(held.holding());
  EXPECT_GT(printed, 100u);
}

}  // namespace
}  // namespace cohort::launcher
