#include "cohort/launcher/control/describe.h"

#include <gtest/gtest.h>

namespace cohort::launcher {
namespace {

v1::CallState Call() {
  v1::CallState call;
  call.set_present(true);
  call.set_sequence(7);
  call.set_call("all_reduce(sum, float32, 100)");
  call.set_site("train.cc:88");
  call.set_age_ms(9);
  return call;
}

TEST(DescribeCallTest, TellsWhatIsUnderWayFromWhatIsDoneOrFailed) {
  v1::CallState call = Call();
  EXPECT_EQ(DescribeCall(call), "in all_reduce #7 at train.cc:88 for 9 ms");
  call.set_done(true);
  EXPECT_EQ(DescribeCall(call), "after all_reduce #7 at train.cc:88 (done 9 ms earlier)");
  call.set_failed(true);
  EXPECT_EQ(DescribeCall(call), "in all_reduce #7 at train.cc:88 until it failed, 9 ms earlier");
  EXPECT_EQ(DescribeCall(v1::CallState()), "in no collective call");
}

}  // namespace
}  // namespace cohort::launcher
