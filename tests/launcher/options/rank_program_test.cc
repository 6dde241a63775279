// Several programs in one job as mpirun's users type them, and the ranks that run them.
#include "cohort/launcher/options/rank_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/options/options.h"

namespace cohort::launcher {
namespace {

using std::string;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Words = std::vector<string>;

absl::StatusOr<CommandLine> ParseWords(Words words) {
  words.insert(words.begin(), "dlaunch");
  return ParseCommandLine(words);
}

Options OptionsOf(const Words& words) {
  const absl::StatusOr<CommandLine> parsed = ParseWords(words);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->options : Options();
}

string ErrorOf(const Words& words) {
  const absl::StatusOr<CommandLine> parsed = ParseWords(words);
  EXPECT_FALSE(parsed.ok()) << testing::PrintToString(words);
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  return string(parsed.status().message());
}

TEST(ColonPrograms, EachHasItsCommandCountAndVariables) {
  const Options options =
      OptionsOf({"--env", "A=1",      "-n", "1", "./server", "--port", "7",       ":", "-np",    "3",   "--env",
                 "B=2",   "./client", "x",  ":", "-n4",      "-m",     "pkg.mod", ":", "--np=2", "a.py"});
  EXPECT_EQ(options.ranks, 10);
  ASSERT_EQ(options.programs.size(), 4u);
  EXPECT_THAT(options.programs[0].command, ElementsAre("./server", "--port", "7"));
  EXPECT_THAT(options.programs[1].command, ElementsAre("./client", "x"));
  EXPECT_THAT(options.programs[2].command, ElementsAre("python3", "-u", "-m", "pkg.mod"));
  EXPECT_THAT(options.programs[3].command, ElementsAre("python3", "-u", "a.py"));
  EXPECT_EQ(options.programs[0].count, 1);
  EXPECT_EQ(options.programs[2].count, 4);
  EXPECT_THAT(options.environment, ElementsAre(Pair("A", "1")));
  EXPECT_THAT(options.programs[1].environment, ElementsAre(Pair("B", "2")));
  EXPECT_TRUE(options.programs[0].environment.empty());
}

TEST(ColonPrograms, OneMayTakeTheRanksThatTheOthersLeave) {
  for (const Words& words :
       {Words{"--ppn", "4", "a", ":", "-n", "1", "b"}, Words{"--ppn", "4", "-n", "3", "a", ":", "b"}}) {
    Options options = OptionsOf(words);
    EXPECT_FALSE(options.ranks.has_value());
    EXPECT_TRUE(GiveRanks(4, &options.programs).ok());
    EXPECT_THAT(options.programs[0].ranks, ElementsAre(RankSpan{0, 2}));
    EXPECT_THAT(options.programs[1].ranks, ElementsAre(RankSpan{3, 3}));
  }
  Options none = OptionsOf({"-n", "3", "a", ":", "b"});
  EXPECT_THAT(string(GiveRanks(3, &none.programs).message()),
              testing::AllOf(HasSubstr("program 2 (b) has no -n"), HasSubstr("dlaunch [options] -- program")));
  EXPECT_THAT(ErrorOf({"./a", ":", "./b"}), HasSubstr("program 1 (./a) and program 2 (./b) have no -n"));
}

TEST(ColonPrograms, AColonOfTheProgramsOwnBeginsNone) {
  for (const Words& words :
       {Words{"cut", "-d", ":", "-f", "1"}, Words{"awk", "-F", ":", "{print}"}, Words{"tr", ":", ","},
        Words{"echo", "a", ":"}, Words{":"}, Words{"--", "echo", "server", ":", "-n", "3", "echo", "client"},
        Words{"-n", "2", "cut", "-d", ":"}, Words{"-n", "2", "--", "echo", ":"},
        Words{"column", "-t", "-s", ":", "file"}, Words{"sh", "-c", "a : b"},
        Words{"sort", "-t", ":", "-n", "-k", "2", "file"}, Words{"cut", "-d", ":", "-c", "3", "file"},
        Words{"a", "-d", ":", "-m", "file"}, Words{"a", "-d", ":", "--np3", "file"},
        Words{"a", "-d", ":", "--env", "file", "b"}, Words{"a", "-d", ":", "-n3"}}) {
    EXPECT_EQ(OptionsOf(words).programs.size(), 1u) << testing::PrintToString(words);
  }
  const Options last =
      OptionsOf({"-n", "1", "a", ":", "-n", "1", "cut", "-d", ":", ":", "-n", "1", "--", "b", ":", "c"});
  ASSERT_EQ(last.programs.size(), 3u);
  EXPECT_THAT(last.programs[1].command, ElementsAre("cut", "-d", ":"));
  EXPECT_THAT(last.programs[2].command, ElementsAre("b", ":", "c"));
}

TEST(ColonPrograms, AnOptionBeforeTheColonDoesNotHideAProgramWithItsOwnOptions) {
  for (const Words& own : {Words{"-n", "3"}, Words{"-n3"}, Words{"-n=3"}, Words{"-np", "3"}, Words{"-np=3"},
                           Words{"-np3"}, Words{"--np", "3"}, Words{"--np=3"}, Words{"--env", "A=1", "-n", "3"},
                           Words{"-n", "3", "--env=A=1"}, Words{"-m", "-n", "3"}}) {
    Words words{"-n", "1", "./server", "--fast", ":"};
    words.insert(words.end(), own.begin(), own.end());
    words.emplace_back("client");
    const Options options = OptionsOf(words);
    ASSERT_EQ(options.programs.size(), 2u) << testing::PrintToString(own);
    EXPECT_THAT(options.programs[0].command, ElementsAre("./server", "--fast"));
    EXPECT_EQ(options.programs[1].count, 3);
  }
}

TEST(ColonPrograms, AMissingProgramIsNamedByItsPlace) {
  const std::pair<Words, const char*> cases[] = {
      {{"-n", "1", "a", ":"}, "program 2 is missing"},
      {{"-n", "1", "a", ":", "-n", "2", "b", ":"}, "program 3 is missing"},
      {{"-n", "1", ":", "-n", "3", "b"}, "program 1 is missing"},
      {{"-n", "1", "a", ":", ":", "-n", "1", "b"}, "program 2 is missing"},
      {{"-n", "1", "a", ":", "-n", "3"}, "program 2 is missing"},
      {{"-n", "1", "a", ":", "-n", "3", ""}, "the name of program 2 is empty"},
  };
  for (const auto& [words, says] : cases) EXPECT_THAT(ErrorOf(words), HasSubstr(says)) << testing::PrintToString(words);
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":"}), HasSubstr("dlaunch [options] -- program"));
}

TEST(ColonPrograms, OptionsOfTheWholeJobBehindAColonAreRefused) {
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "1", "--grace", "5", "b"}),
              HasSubstr("program 2: --grace is for the whole job: give it before the first program"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "--dry-run", "-n", "1", "b"}), HasSubstr("--dry-run is for the whole job"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-H", "x", "-n", "1", "b"}), HasSubstr("--hosts is for the whole job"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "0", "b"}), HasSubstr("--np '0'"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "1", "--env", "COHORT_ENCRYPT_DATA=0", "b"}),
              HasSubstr("program 2: --env COHORT_ENCRYPT_DATA is for the whole job"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "1", "--env", "COHORT_TUNING=x", "b"}),
              HasSubstr("program 2: --env COHORT_TUNING is for the whole job"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "1", "-x", "A", "b"}), HasSubstr("--env NAME=VALUE"));
  EXPECT_THAT(ErrorOf({"-n", "1", "a", ":", "-n", "1", "--env", "RANK=1", "b"}), HasSubstr("dlaunch sets RANK itself"));
  EXPECT_THAT(ErrorOf({"--nnodes", "1:2", "a", ":", "-n", "1", "b"}), HasSubstr("use --nnodes 2"));
  EXPECT_THAT(ErrorOf({"-n", "60000000", "a", ":", "-n", "60000000", "b"}), HasSubstr("120000000 ranks together"));
}

TEST(ColonPrograms, AnErrorBehindAColonSaysWhichProgramHasIt) {
  const std::pair<Words, const char*> cases[] = {
      {{"-n", "1", "a", ":", "-n", "0", "b"}, "program 2: --np '0'"},
      {{"-n", "1", "a", ":", "-n", "1", "b", ":", "-n=x", "c"}, "program 3: --np 'x'"},
      {{"-n", "1", "a", ":", "-n", "1", "--env", "A", "b"}, "program 2: --env 'A'"},
      {{"-n", "1", "a", ":", "-n", "1", "--frobnicate", "b"}, "program 2: unknown option '--frobnicate'"},
      {{"-n", "1", "a", ":", "-n", "1", "b", ":", "-npernode", "1", "c"}, "program 3: unknown option"},
      {{"-n", "1", "a", ":", "-n", "1", "-n", "2", "b"}, "program 2: --np is given twice"},
      {{"-n", "1", "a", ":", "-n", "1", "--wdir", "x", "b"}, "program 2: option '--wdir' is none of dlaunch's"},
  };
  for (const auto& [words, says] : cases) {
    EXPECT_THAT(ErrorOf(words), testing::StartsWith(says)) << testing::PrintToString(words);
  }
}

TEST(RankPrograms, RanksAreNamedInWords) {
  EXPECT_EQ(NameSpans({}), "no rank");
  EXPECT_EQ(NameSpans({{3, 3}}), "rank 3");
  EXPECT_EQ(NameSpans({{1, 3}}), "ranks 1-3");
  EXPECT_EQ(NameSpans({{0, 2}, {5, 5}}), "ranks 0-2 and 5");
}

}  // namespace
}  // namespace cohort::launcher
