#include "cohort/launcher/control/parts/program_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using std::string;
using testing::ElementsAre;

void AddProgram(RankPrograms* programs, const std::vector<string>& command,
                const std::vector<std::pair<uint32_t, uint32_t>>& ranks) {
  v1::RankProgram& program = *programs->Add();
  for (const string& word : command) program.add_command(word);
  for (const auto& [first, last] : ranks) {
    v1::RankSpan& span = *program.add_ranks();
    span.set_first(first);
    span.set_last(last);
  }
}

TEST(ProgramOf, EachRankRunsTheProgramThatNamesIt) {
  RankPrograms programs;
  AddProgram(&programs, {"/opt/server", "7"}, {{0, 0}, {5, 6}});
  AddProgram(&programs, {"/usr/bin/python3", "-u", "./client.py", string("\0t:\0o", 5)}, {{1, 4}});
  EXPECT_EQ(ProgramOf(programs, 6), 0);
  EXPECT_EQ(ProgramOf(programs, 4), 1);
  EXPECT_EQ(ProgramOf(programs, 7), 0) << "a rank that the plan lacks";
  EXPECT_THAT(CommandOf(programs, 5), ElementsAre("/opt/server", "7"));
  EXPECT_THAT(CommandOf(programs, 3), ElementsAre("/usr/bin/python3", "-u", "./client.py", "3:2"));
  EXPECT_EQ(ProgramName(programs, 0), "server");
  EXPECT_EQ(ProgramName(programs, 1), "client.py");
}

TEST(ProgramOf, AProgramIsNamedByWhatAReaderCallsIt) {
  RankPrograms programs;
  AddProgram(&programs, {"./client", "-u", "user:password"}, {{0, 0}});
  AddProgram(&programs, {"env", "A=1", "B=2", "/opt/server", "C=3"}, {{1, 1}});
  AddProgram(&programs, {"python3.11", "server.py", "-m"}, {{2, 2}});
  AddProgram(&programs, {"/usr/bin/python3", "-u", "-m", "pkg.train"}, {{3, 3}});
  AddProgram(&programs, {"python3", "-c", "print(1)"}, {{4, 4}});
  AddProgram(&programs, {"python3", "-u", "./folder/"}, {{5, 5}});
  AddProgram(&programs, {"python3", string("run_\0t.py", 9)}, {{6, 6}});
  AddProgram(&programs, {"env"}, {{7, 7}});
  const std::vector<string> names{"client", "server", "server.py", "pkg.train", "python3", "folder", "run_6.py", "env"};
  for (uint32_t rank = 0; rank < names.size(); ++rank) EXPECT_EQ(ProgramName(programs, rank), names[rank]);
}

TEST(ProgramOf, AnOnlyProgramRunsInEveryRankAndNeedsNoName) {
  RankPrograms programs;
  EXPECT_TRUE(CommandOf(programs, 3).empty());
  AddProgram(&programs, {"train", string("\0o", 2), string("end\0", 4)}, {});
  EXPECT_EQ(ProgramOf(programs, 3), 0);
  EXPECT_THAT(CommandOf(programs, 3), ElementsAre("train", "3", "end"));
  EXPECT_EQ(ProgramName(programs, 3), "");
}

}  // namespace
}  // namespace cohort::launcher
