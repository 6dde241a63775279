// Requests for new processes in PMI-1, as libraries write them and as nobody should.
#include "cohort/launcher/agent/mpi/spawn/pmi1_spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using Result = std::optional<absl::StatusOr<SpawnRequest>>;

// Returns the outcome of the last line; the others have none.
Result Give(Pmi1Spawn& spawn, const std::vector<std::string>& lines) {
  Result result;
  for (const std::string& line : lines) {
    EXPECT_FALSE(result.has_value());
    if (line == "mcmd=spawn") {
      spawn.BeginBlock();
    } else {
      result = spawn.OnLine(line);
    }
  }
  return result;
}

TEST(Pmi1Spawn, GathersTheProgramsOfAllBlocks) {
  Pmi1Spawn spawn;
  const Result result = Give(
      spawn, {"mcmd=spawn",      "nprocs=2",        "execname=./a b", "totspawns=2",    "spawnssofar=1",  "arg1=x=y z",
              "arg2=",           "argcnt=2",        "preput_num=1",   "preput_key_0=k", "preput_val_0=v", "info_num=1",
              "info_key_0=wdir", "info_val_0=/tmp", "endcmd",         "mcmd=spawn",     "nprocs=1",       "execname=c",
              "totspawns=2",     "spawnssofar=2",   "argcnt=0",       "preput_num=0",   "info_num=0",     "endcmd"});
  ASSERT_TRUE(result && result->ok());
  const SpawnRequest& request = **result;
  ASSERT_EQ(request.programs.size(), 2u);
  EXPECT_THAT(request.programs[0].argv, ElementsAre("./a b", "x=y z", ""));
  EXPECT_EQ(request.programs[0].count, 2);
  EXPECT_EQ(request.programs[0].directory, "/tmp");
  EXPECT_THAT(request.programs[1].argv, ElementsAre("c"));
  EXPECT_THAT(request.values, ElementsAre(std::pair("k", "v")));
  EXPECT_FALSE(spawn.in_block());
}

TEST(Pmi1Spawn, RefusesWhatIsNoRequestAndTakesTheNext) {
  Pmi1Spawn spawn;
  for (const std::vector<std::string>& lines : std::vector<std::vector<std::string>>{
           {"mcmd=spawn", "endcmd"},
           {"mcmd=spawn", "nprocs=0", "execname=a", "endcmd"},
           {"mcmd=spawn", "nprocs=99999999999999", "execname=a", "endcmd"},
           {"mcmd=spawn", "nprocs=1", "execname=", "endcmd"},
           {"mcmd=spawn", "nprocs=1", "execname=a", "argcnt=2000000000", "endcmd"},
           {"mcmd=spawn", "nprocs=1", "execname=a", "arg1=" + std::string(Pmi1Spawn::kMostBytes, 'x'), "endcmd"}}) {
    const Result result = Give(spawn, lines);
    ASSERT_TRUE(result.has_value());
    EXPECT_FALSE(result->ok());
  }
  const Result next = Give(spawn, {"mcmd=spawn", "nprocs=1", "execname=a", "preput_num=2000000000", "endcmd"});
  ASSERT_TRUE(next && next->ok()) << "there are fewer pairs than it says";
}

TEST(Pmi1Spawn, HoldsNoMoreThanItsLimitOfBlocksThatNeverEnd) {
  Pmi1Spawn spawn;
  for (int i = 0; i < 100'000; ++i) {
    spawn.BeginBlock();
    spawn.OnLine("nprocs=1");
    spawn.OnLine("execname=a");
    spawn.OnLine("totspawns=1000000");
    ASSERT_EQ(spawn.OnLine("endcmd").has_value(), false);
    spawn.OnLine("spawnssofar=1");
  }
  spawn.BeginBlock();
  spawn.OnLine("spawnssofar=1");
  const Result result = spawn.OnLine("endcmd");
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->ok());
}

TEST(Pmi1Spawn, TakesAnyLines) {
  std::mt19937 random(7);
  const std::vector<std::string> lines = {
      "mcmd=spawn", "endcmd",      "nprocs=1",      "execname=a",    "=",          "", "argcnt=3",
      "arg1=x",     "totspawns=2", "spawnssofar=1", "spawnssofar=2", "info_num=-1"};
  Pmi1Spawn spawn;
  for (int i = 0; i < 20'000; ++i) spawn.OnLine(lines[random() % lines.size()]);
}

}  // namespace
}  // namespace cohort::launcher
