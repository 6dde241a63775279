#include "cohort/launcher/control/describe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

v1::CallState CallOfRank3() {
  v1::CallState call;
  call.set_present(true);
  call.set_sequence(7);
  call.set_call("all_reduce(sum, float32, 100)");
  call.set_site("train.cc:88");
  call.set_age_ms(9);
  return call;
}

TEST(DescribeCallTest, DistinguishesCallsUnderWayFromDoneAndFailedOnes) {
  v1::CallState call = CallOfRank3();
  EXPECT_EQ(DescribeCall(call), "in all_reduce #7 at train.cc:88 for 9 ms");
  call.set_done(true);
  EXPECT_EQ(DescribeCall(call), "after all_reduce #7 at train.cc:88 (done 9 ms ago)");
  call.set_failed(true);
  EXPECT_EQ(DescribeCall(call), "in all_reduce #7 at train.cc:88 until it failed, 9 ms ago");
}

TEST(DescribeCallTest, CountsTheAgeOfALastCallToTheEndOfItsRank) {
  v1::RankExit exit;
  *exit.mutable_doing() = CallOfRank3();
  exit.mutable_doing()->set_done(true);
  EXPECT_EQ(DescribeLastCall(exit), "after all_reduce #7 at train.cc:88 (done 9 ms before its end)");
}

TEST(DescribeCallTest, NamesTheGroupWhereCallsOfSeveralStandSideBySide) {
  v1::CallState call = CallOfRank3();
  call.set_group(0xab12);
  EXPECT_EQ(DescribeCall(call, /*name_group=*/true),
            "in all_reduce #7 of group 000000000000ab12 at train.cc:88 for 9 ms");
}

TEST(DescribeCallTest, DistinguishesARankWithoutCallsFromOneWithoutCohort) {
  v1::CallState call;
  EXPECT_EQ(DescribeCall(call), "in no call of Cohort, which it has not joined");
  call.set_joined(true);
  EXPECT_EQ(DescribeCall(call), "in no collective call");
}

v1::RankExit Failed(const std::vector<std::string>& lines) {
  v1::RankExit exit;
  exit.set_started(true);
  exit.set_exit_code(1);
  for (const std::string& line : lines) exit.add_last_lines(line);
  return exit;
}

TEST(DescribeFailureTest, NamesPythonsException) {
  EXPECT_EQ(DescribeFailure(Failed({"Traceback (most recent call last):", "  File \"train.py\", line 3, in f",
                                    "    f()", "  [Previous line repeated 995 more times]",
                                    "RecursionError: maximum recursion depth exceeded"})),
            "exited with code 1: RecursionError: maximum recursion depth exceeded at train.py:3");
  EXPECT_EQ(DescribeFailure(Failed({"  File \"train.py\", line 1", "    x = = 1", "        ^",
                                    "SyntaxError: invalid syntax", "flushed by the end", "flushed too"})),
            "exited with code 1: SyntaxError: invalid syntax at train.py:1");
  EXPECT_EQ(DescribeFailure(Failed({"  File \"<string>\", line 1, in <module>", "torch.cuda.OutOfMemoryError"})),
            "exited with code 1: torch.cuda.OutOfMemoryError");
}

TEST(DescribeFailureTest, NamesTheLastLineWhereThereIsNoException) {
  v1::RankExit exit = Failed({"no licence file", "-----"});
  exit.set_last_words("no licence file");
  EXPECT_EQ(DescribeFailure(exit), "exited with code 1; its last line: \"no licence file\"");
  exit.set_signal(6);
  EXPECT_EQ(DescribeFailure(exit), "killed by SIGABRT; its last line: \"no licence file\"");
  exit.set_killed_by_us(true);
  EXPECT_EQ(DescribeFailure(exit), "killed by SIGABRT");
  v1::RankExit python = Failed({"  File \"train.py\", line 1, in f", "ValueError: no", "bye"});
  python.set_last_words("bye");
  EXPECT_EQ(DescribeFailure(python), "exited with code 1: ValueError: no at train.py:1");
}

TEST(DescribeFailureTest, TakesNoOtherLineForAnException) {
  EXPECT_EQ(DescribeFailure(Failed({"ValueError: told by a logger", "bye"})), "exited with code 1");
  EXPECT_EQ(DescribeFailure(Failed({"  File \"train.py\", line 1", "    x = = 1"})), "exited with code 1");
  EXPECT_EQ(DescribeFailure(Failed({"  File \"train.py\", line 1", "step 1, loss: 2"})), "exited with code 1");
  v1::RankExit ended = Failed({"  File \"train.py\", line 1, in f", "KeyboardInterrupt"});
  ended.set_signal(2);
  EXPECT_EQ(DescribeFailure(ended), "killed by SIGINT");
  ended.set_signal(0);
  ended.set_exit_code(0);
  EXPECT_EQ(DescribeFailure(Failed({})), "exited with code 1");
}

std::string EndWithCode(int code) {
  v1::RankExit exit = Failed({});
  exit.set_exit_code(code);
  return DescribeEnd(exit);
}

TEST(DescribeEndTest, AWrappersExitCodeIsDescribedAsItsSignal) {
  EXPECT_EQ(EndWithCode(139), "exited with code 139, which a shell gives when its program was killed by SIGSEGV");
  EXPECT_EQ(EndWithCode(130), "exited with code 130, which a shell gives when its program was killed by SIGINT");
  EXPECT_EQ(EndWithCode(245),
            "exited with code 245, which a Python script gives when its program was killed by SIGSEGV");
  for (const int code : {1, 125, 126, 127, 128, 145, 200, 254, 255}) {
    EXPECT_EQ(EndWithCode(code), "exited with code " + std::to_string(code));
  }
  v1::RankExit killed = Failed({});
  killed.set_exit_code(137);
  killed.set_out_of_memory("out of memory (limit of its cgroup: 512 MiB)");
  EXPECT_EQ(DescribeEnd(killed),
            "exited with code 137, which a shell gives when its program was killed by SIGKILL; out of memory (limit of "
            "its cgroup: 512 MiB)");
  killed.set_killed_by_us(true);  // SIGTERM, which its wrapper has told as 143
  killed.set_exit_code(143);
  EXPECT_EQ(WrappersSignal(killed), 0);
}

}  // namespace
}  // namespace cohort::launcher
