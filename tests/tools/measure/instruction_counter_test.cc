#include "tools/measure/instruction_counter.h"

#include <gtest/gtest.h>

#include <csignal>

namespace cohort::measure {
namespace {

TEST(InstructionCounter, CountsWhatAFunctionExecutes) {
  const auto counter = InstructionCounter::Make();
  if (!counter.ok()) GTEST_SKIP() << counter.status().message();
  const uint64_t few = (*counter)->Count([] { asm volatile(".rept 100\n nop\n .endr"); });
  const uint64_t more = (*counter)->Count([] { asm volatile(".rept 300\n nop\n .endr"); });
  EXPECT_GE(few, 100u);
  EXPECT_LT(few, 150u);
  EXPECT_EQ(more - few, 200u);
}

TEST(InstructionCounter, LeavesTheHandlerOfTrapsAsItWas) {
  struct sigaction before = {}, after = {};
  sigaction(SIGTRAP, nullptr, &before);
  {
    const auto counter = InstructionCounter::Make();
  }
  sigaction(SIGTRAP, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace cohort::measure
