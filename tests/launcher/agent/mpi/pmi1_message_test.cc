// Lines of PMI-1, well-formed and not.
#include "cohort/launcher/agent/mpi/pmi1_message.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace cohort::launcher {
namespace {

TEST(Pmi1Message, HasACommandAndWords) {
  const auto message = Pmi1Message::Parse("cmd=put kvsname=job-1 key=P0-businesscard value=fabric#x y=z$");
  EXPECT_EQ(message.command(), "put");
  EXPECT_EQ(message.Get("kvsname"), "job-1");
  EXPECT_EQ(message.Get("key"), "P0-businesscard");
  EXPECT_EQ(message.Get("value"), "fabric#x y=z$") << "a value goes on to the end of the line";
  EXPECT_EQ(message.Get("other"), "");
  EXPECT_EQ(Pmi1Message::Parse("mcmd=spawn").command(), "spawn");
}

TEST(Pmi1Message, ReadsNumbersThatAreNumbers) {
  const auto message = Pmi1Message::Parse("cmd=abort exitcode=-7 a=7x b= c=99999999999999");
  EXPECT_EQ(message.GetNumber("exitcode", 1), -7);
  for (const char* name : {"a", "b", "c", "d"}) EXPECT_EQ(message.GetNumber(name, 42), 42) << name;
}

TEST(Pmi1Message, LeavesOutWordsWithoutAValue) {
  const auto message = Pmi1Message::Parse("  hello cmd=get  key=k there");
  EXPECT_EQ(message.command(), "get");
  EXPECT_EQ(message.Get("key"), "k");
}

TEST(Pmi1Message, TakesAnyBytes) {
  std::mt19937 random(7);
  const std::string alphabet("cmd=put value \n\0\xff#", 18);
  for (int i = 0; i < 20'000; ++i) {
    std::string line;
    for (size_t length = random() % 40; length > 0; --length) line += alphabet[random() % alphabet.size()];
    const auto message = Pmi1Message::Parse(line);
    EXPECT_LE(message.command().size(), line.size());
  }
  EXPECT_EQ(Pmi1Message::Parse("").command(), "");
}

}  // namespace
}  // namespace cohort::launcher
