#include "cohort/launcher/base/whole_number.h"

#include <gtest/gtest.h>

namespace cohort::launcher {
namespace {

TEST(WholeNumber, AWholeNumberIsDigitsWithinTheBounds) {
  EXPECT_EQ(ReadWholeNumber("0", 0, 9), 0);
  EXPECT_EQ(ReadWholeNumber("007", 1, 9), 7);
  EXPECT_EQ(ReadWholeNumber("2147483647", 0, 2147483647), 2147483647);
  for (const char* none : {"", " 1", "1 ", "+1", "-1", "-0", "1.0", "0x1", "1,2", "2147483648", "10"}) {
    EXPECT_FALSE(ReadWholeNumber(none, 0, 9)) << none;
  }
  EXPECT_FALSE(ReadWholeNumber("0", 1, 9));
}

}  // namespace
}  // namespace cohort::launcher
