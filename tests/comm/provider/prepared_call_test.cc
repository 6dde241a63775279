// How long a prepared call rests after a repetition that needed an operation.
#include "cohort/comm/provider/prepared_call.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cohort::comm {
namespace {

uint32_t LengthOf(InlineRest& rest) {
  uint32_t calls = 0;
  while (rest.Takes()) ++calls;
  return calls;
}

TEST(InlineRestTest, DoublesUntilRunningInlineHasBeenOfUse) {
  InlineRest rest;
  EXPECT_FALSE(rest.Takes());
  uint64_t done = 3;
  for (const uint32_t expected : {8u, 16u, 32u, 64u, 128u, 256u, 512u, 1024u, 1024u}) {
    rest.Begin(done);
    EXPECT_EQ(LengthOf(rest), expected);
  }
  rest.Begin(done += 1023);
  EXPECT_EQ(LengthOf(rest), 1024u);
  rest.Begin(done += 1024);
  EXPECT_EQ(LengthOf(rest), 8u);
  rest.Begin(done += 8);
  EXPECT_EQ(LengthOf(rest), 8u);
}

}  // namespace
}  // namespace cohort::comm
