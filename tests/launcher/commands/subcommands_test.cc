#include "cohort/launcher/commands/subcommands.h"

#include <gtest/gtest.h>

#include "cohort/launcher/options/option_hints.h"

namespace cohort::launcher {
namespace {

TEST(SubcommandsTest, EachIsGuessedFromANameThatIsLikeIt) {
  for (const runtime::ManualCommand& manual : SubcommandManuals()) {
    EXPECT_EQ(MeantCommand(manual.name + "x"), manual.name);
  }
}

TEST(SubcommandsTest, NamesOfUsualProgramsAreNoSlips) {
  for (const char* const name : {"train", "wc", "who.py", "main.py"}) EXPECT_EQ(MeantCommand(name), "") << name;
}

}  // namespace
}  // namespace cohort::launcher
