// When dlaunch reports a failure, and for how long it holds what ranks print meanwhile.
#include "cohort/launcher/front_end/failure_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr milliseconds kAtMost{1000};  // that a line is held

class FailureNewsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
  }
  // Returns the output of ranks. Once.
  std::string Printed() {
    EXPECT_TRUE(printer_.Finish(std::chrono::seconds(10)));
    return ::testing::internal::GetCapturedStdout();
  }
  // Returns the lines of dlaunch. Once.
  std::string Said() {
    EXPECT_TRUE(printer_.Finish(std::chrono::seconds(10)));
    return ::testing::internal::GetCapturedStderr();
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
  LineTurns turns_{&loop_, &printer_, {}};
  JobEnd end_;
  FailureNews news_{job_, end_, &loop_, &turns_};
};

// A rank has failed, says its agent; the rendezvous still asks for the cause.
TEST_F(FailureNewsTest, ALineIsHeldForASecondAtMostWithoutACause) {
  Print("before", false);
  Print("after", true);
  Pass(kAtMost + milliseconds(200));
  Print("later", true);
  EXPECT_EQ(Printed(), "[2] before\n[2] after\n[2] later\n");
  EXPECT_EQ(Said(), "");
}

TEST_F(FailureNewsTest, TheCauseComesBeforeTheLinesThatAreHeld) {
  Print("before", false);
  Print("after", true);
  news_.OnLost("rank 3 killed by SIGKILL");
  const std::string early = Printed();
  EXPECT_THAT(early, HasSubstr("before"));
  EXPECT_THAT(early, Not(HasSubstr("after")));
  Pass(2 * kAtMost);
  EXPECT_EQ(Said(), "dlaunch: rank 3 killed by SIGKILL\ndlaunch: ending the other ranks\n");
}

TEST_F(FailureNewsTest, ARemarkComesBehindTheFailure) {
  news_.OnRemark("rank 1 has ended without MPI_Finalize");
  Pass(kAtMost / 4);
  news_.OnLost("rank 0 exited with 1");
  Pass(2 * kAtMost);
  EXPECT_EQ(Printed(), "");
  EXPECT_EQ(Said(),
            "dlaunch: rank 0 exited with 1\ndlaunch: ending the other ranks\n"
            "dlaunch: rank 1 has ended without MPI_Finalize\n");
}

TEST_F(FailureNewsTest, ARemarkComesBehindTheReport) {
  news_.OnRemark("rank 1 has ended without MPI_Finalize");
  v1::JobReport report;
  report.set_headline("rank 0 exited with 1");
  report.set_culprit_rank(0);
  news_.Tell(report);
  Pass(kAtMost + milliseconds(200));
  EXPECT_EQ(Printed(), "");
  const std::string said = Said();
  const size_t failure = said.find("rank 0 exited with 1"), remark = said.find("rank 1 has ended without MPI_Finalize");
  ASSERT_NE(failure, std::string::npos) << said;
  ASSERT_NE(remark, std::string::npos) << said;
  EXPECT_LT(failure, remark) << said;
  EXPECT_EQ(said.find("rank 1 has ended", remark + 1), std::string::npos) << said;
}

TEST_F(FailureNewsTest, ARemarkWithoutAFailureComesAfterASecond) {
  news_.OnRemark("rank 1 has ended without MPI_Finalize");
  Pass(kAtMost + milliseconds(200));
  EXPECT_EQ(Printed(), "");
  EXPECT_EQ(Said(), "dlaunch: rank 1 has ended without MPI_Finalize\n");
}

}  // namespace
}  // namespace cohort::launcher
