#include "cohort/launcher/agent/stacks/blocking_call.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <string>

namespace cohort::launcher {
namespace {

std::string Text(long number) { return std::to_string(number) + " 0x1f 0x7f00 0x400 0x0 0x0 0x0 0x7ffc 0x7f9f\n"; }

TEST(BlockingCallTest, NamesTheCallAndItsPurpose) {
  const auto read = ParseBlockingCall(Text(SYS_read));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->name, "read");
  EXPECT_EQ(read->activity, Activity::kReads);
  EXPECT_TRUE(read->of_descriptor);
  EXPECT_EQ(read->first_argument, 0x1fu);
  const auto futex = ParseBlockingCall(Text(SYS_futex));
  ASSERT_TRUE(futex.has_value());
  EXPECT_EQ(futex->activity, Activity::kLocks);
  EXPECT_FALSE(futex->of_descriptor);
  EXPECT_EQ(ParseBlockingCall(Text(SYS_clock_nanosleep))->activity, Activity::kSleeps);
  EXPECT_EQ(ParseBlockingCall(Text(SYS_fsync))->activity, Activity::kWrites);
  EXPECT_EQ(ParseBlockingCall(Text(SYS_wait4))->activity, Activity::kChildren);
}

TEST(BlockingCallTest, ACallWithoutANameHasItsNumber) {
  const auto other = ParseBlockingCall("431 0x0\n");
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->name, "system call 431");
  EXPECT_EQ(other->activity, Activity::kKernel);
}

TEST(BlockingCallTest, NothingIsSaidOfAThreadInNoCall) {
  for (const std::string text : {"running\n", "-1 0x7ffc 0x7f9f\n", "", "nonsense"}) {
    EXPECT_EQ(ParseBlockingCall(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseBlockingCall(Text(SYS_restart_syscall)), std::nullopt);
}

}  // namespace
}  // namespace cohort::launcher
