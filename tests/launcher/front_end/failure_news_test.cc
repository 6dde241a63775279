// When dlaunch reports a failure, and for how long it holds what ranks print meanwhile.
#include "cohort/launcher/front_end/failure_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr milliseconds kAtMost{1000};  // that a line is held

class FailureNewsTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::internal::CaptureStdout(); }
  // The standard output so far; ends the test.
  std::string Printed() {
    EXPECT_TRUE(printer_.Finish(std::chrono::seconds(10)));
    return ::testing::internal::GetCapturedStdout();
  }
  void Print(const std::string& text, bool after_failure) {
    v1::OutputLine line;
    line.set_rank(2);
    line.set_text(text);
    line.set_epoch(1);
    line.set_after_failure(after_failure);
    news_.OnOutput(line);
  }
  void Pass(milliseconds time) {
    loop_.After(time, [this] { loop_.Quit(); });
    loop_.Run();
  }

  Job job_;
  EventLoop loop_;
  OutputPrinter printer_{{.on_drained = [] {}, .on_closed = [](int, int) {}}};
  std::vector<std::string> said_;
  LineTurns turns_{&loop_, &printer_, {}};
  FailureNews news_{
      job_,
      &loop_,
      &turns_,
      {.say = [this](const std::string& text) { said_.push_back(text); }, .ending = [] { return false; }}};
};

// A rank has failed, says its agent; the rendezvous still asks for the cause.
TEST_F(FailureNewsTest, ALineIsHeldForASecondAtMostWithoutACause) {
  Print("before", false);
  Print("after", true);
  Pass(kAtMost + milliseconds(200));
  EXPECT_TRUE(said_.empty());
  Print("later", true);
  EXPECT_EQ(Printed(), "[2] before\n[2] after\n[2] later\n");
}

TEST_F(FailureNewsTest, TheCauseComesBeforeTheLinesThatAreHeld) {
  Print("before", false);
  Print("after", true);
  news_.OnLost("rank 3 killed by SIGKILL");
  const std::string early = Printed();
  EXPECT_THAT(early, HasSubstr("before"));
  EXPECT_THAT(early, Not(HasSubstr("after")));
  Pass(2 * kAtMost);
  EXPECT_THAT(said_, ElementsAre("rank 3 killed by SIGKILL", "ending the other ranks"));
}

}  // namespace
}  // namespace cohort::launcher
