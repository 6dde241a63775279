// Files of srun's --multi-prog, good and bad, and bytes that mean nothing.
#include "cohort/launcher/options/multi_prog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {
namespace {

using std::string;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<RankProgram> ProgramsOf(const string& text) {
  const absl::StatusOr<std::vector<RankProgram>> programs = ReadMultiProg(text, "f");
  EXPECT_TRUE(programs.ok()) << programs.status();
  return programs.ok() ? *programs : std::vector<RankProgram>();
}

string WhyNot(const string& text) {
  const absl::Status status = ReadMultiProg(text, "f").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return string(status.message());
}

const string kRankMark("\0t", 2), kPlaceMark("\0o", 2);

TEST(MultiProg, ReadsTheExampleOfSrunsManual) {
  std::vector<RankProgram> programs = ProgramsOf(
      "# srun multiple program configuration file\n#\n4-6       hostname\n1,7       echo  task:%t\n"
      "0,2-3     echo  offset:%o\n");
  ASSERT_EQ(programs.size(), 3u);
  EXPECT_THAT(programs[0].command, ElementsAre("hostname"));
  EXPECT_THAT(programs[1].command, ElementsAre("echo", "task:" + kRankMark));
  EXPECT_THAT(programs[2].command, ElementsAre("echo", "offset:" + kPlaceMark));
  EXPECT_THAT(programs[2].ranks, ElementsAre(RankSpan{0, 0}, RankSpan{2, 3}));
  EXPECT_EQ(programs[2].where, "line 5 of f");
  EXPECT_EQ(CountRanks(programs), 8);
  EXPECT_TRUE(GiveRanks(8, &programs).ok());
}

TEST(MultiProg, AStarTakesTheRanksThatNoLineNames) {
  std::vector<RankProgram> programs = ProgramsOf("* ./idler\n1,3 ./client\n");
  EXPECT_FALSE(CountRanks(programs).has_value());
  ASSERT_TRUE(GiveRanks(6, &programs).ok());
  EXPECT_THAT(programs[0].ranks, ElementsAre(RankSpan{0, 0}, RankSpan{2, 2}, RankSpan{4, 5}));
  programs = ProgramsOf("0-3 a\n* b\n");
  EXPECT_TRUE(GiveRanks(4, &programs).ok());
  EXPECT_TRUE(programs[1].ranks.empty());
}

TEST(MultiProg, QuotesBackslashesAndLongLinesWorkAsForSrun) {
  const std::vector<RankProgram> programs =
      ProgramsOf("0 a 'b %t' x'\\'y d\\ e \\%t '' 50% ab\\\ncd \\\n   last\r\n1 run.py %o\n2 /opt/%t x\n");
  ASSERT_EQ(programs.size(), 3u);
  EXPECT_THAT(programs[0].command, ElementsAre("a", "b %t", "x\\y", "d e", "%t", "", "50%", "abcd", "last"));
  EXPECT_THAT(programs[1].command, ElementsAre("python3", "-u", "run.py", kPlaceMark));
  EXPECT_EQ(programs[1].where, "line 4 of f");
  EXPECT_THAT(programs[2].command, ElementsAre("/opt/%t", "x")) << "a program has no marks";
  EXPECT_EQ(Typed(kRankMark + "5"), "%t5");
}

TEST(MultiProg, DoubleQuotesAreCharactersUnlessOneIsAlone) {
  const std::vector<RankProgram> programs = ProgramsOf("0 a {\"lr\":%t} \\\" '\"' \"\"\n");
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_THAT(programs[0].command, ElementsAre("a", "{\"lr\":" + kRankMark + "}", "\"", "\"", "\"\""));
  EXPECT_THAT(WhyNot("0 a\n1 b \"two words\"\n"), HasSubstr("line 2 of f: double quotes mean nothing here"));
  EXPECT_THAT(WhyNot("1 b \"two words\"\n"), HasSubstr("'\"two' has one alone: put what belongs together into single"));
}

TEST(MultiProg, ThePlaceInALineOfAStarIsTheRank) {
  const std::vector<RankProgram> programs = ProgramsOf("1,3 a %o\n* b %o %t\n");
  EXPECT_THAT(programs[0].command, ElementsAre("a", kPlaceMark));
  EXPECT_THAT(programs[1].command, ElementsAre("b", kRankMark, kRankMark));
}

TEST(MultiProg, AWrongLineIsNamedWithTheRemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "f: it names no program"},
      {"# nothing\n\n", "f: it names no program"},
      {"0 a\nb c\n", "line 2 of f: 'b' are no ranks"},
      {"3-1 a\n", "'3-1' are no ranks"},
      {"0,,1 a\n", "'0,,1' are no ranks"},
      {"0-* a\n", "'0-*' are no ranks"},
      {"-1 a\n", "'-1' are no ranks"},
      {"99999999999 a\n", "are no ranks"},
      {"'' a\n", "'' are no ranks"},
      {"0\n", "line 1 of f: there is no program behind the ranks 0"},
      {"0 ''\n", "there is no program behind"},
      {"0 a 'b\n", "a quote is not closed"},
      {"0 'a\n", "a quote is not closed"},
      {"0 a 'b \\' c'\n", "a quote is not closed"},
      {"0-2 a\n4 b\n1,3 c\n", "line 3 of f: rank 1 has its program by line 1 of f already"},
      {"0,0 a\n", "rank 0 has its program by line 1 of f already"},
      {"* a\n* b\n", "line 2 of f: * stands for all other ranks already in line 1 of f"},
  };
  for (const auto& [text, says] : cases) EXPECT_THAT(WhyNot(text), HasSubstr(says)) << text;
  EXPECT_THAT(WhyNot(string("0 a\0b\n", 6)), HasSubstr("it is no text"));
}

TEST(MultiProg, EveryRankNeedsAProgramAndEveryLineItsRanks) {
  std::vector<RankProgram> programs = ProgramsOf("0 a\n2-3,6 b\n");
  EXPECT_THAT(string(GiveRanks(8, &programs).message()),
              HasSubstr("no line names a program for ranks 1, 4-5 and 7 of 8 ranks"));
  programs = ProgramsOf("0 a\n1-3 b\n");
  EXPECT_THAT(string(GiveRanks(2, &programs).message()),
              HasSubstr("line 2 of f: the job has 2 ranks, from 0, and no rank 2"));
  EXPECT_THAT(string(GiveRanks(2, &programs).message()), HasSubstr("give -n 4"));
}

TEST(MultiProg, TheCommandLineGivesNoProgramBesideTheFile) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine({"dlaunch", "-n", "4", "--multi-prog", "f"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.program_file, "f");
  EXPECT_EQ(line->options.ranks, 4);
  const std::pair<std::vector<string>, const char*> refused[] = {
      {{"dlaunch", "--multi-prog", "f", "train"}, "leave 'train' and what follows out"},
      {{"dlaunch", "--multi_prog=f", "-m", "pkg"}, "-m is for a program on the command line"},
      {{"dlaunch", "--multi-prog", "f", "--frobnicate"}, "unknown option '--frobnicate'"},
      {{"dlaunch", "--multi-prog"}, "--multi-prog has no value"},
      {{"dlaunch", "--multi-prog", ""}, "--multi-prog '': give the path"},
      {{"dlaunch", "--multi-prog", "f", "--nnodes", "1:2"}, "use --nnodes 2"}};
  for (const auto& [words, says] : refused) {
    EXPECT_THAT(string(ParseCommandLine(words).status().message()), HasSubstr(says));
  }
}

TEST(MultiProg, AnyBytesAreAnswered) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const string bytes("0123456789,-*%to '\"\\#\n\n\r\t a\xff\0", 29);
  for (int i = 0; i < 5000; ++i) {
    string text(random() % 40, ' ');
    for (char& byte : text) byte = bytes[random() % bytes.size()];
    const absl::StatusOr<std::vector<RankProgram>> programs = ReadMultiProg(text, "f");
    if (!programs.ok()) continue;
    for (const int size : {1, 8, 1000000000}) {
      std::vector<RankProgram> given = *programs;
      if (!GiveRanks(size, &given).ok()) continue;
      for (const RankProgram& program : given) EXPECT_FALSE(program.command.empty());
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
