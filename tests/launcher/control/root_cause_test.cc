// The first cause of a job's failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "tests/launcher/control/group_failures.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(GroupFailures, VictimsThatExitBeforeTheirCulpritAreNotBlamed) {
  Fail(0, Failure(0, 2, kUnavailable, "peer rank 2 closed its connection"));
  job_.Exit(Exited(0, 1));
  job_.Exit(Exited(1, 1));
  job_.Exit(Killed(2, SIGKILL));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 2);
  EXPECT_EQ(job_.report()->exit_code(), 137);
}

TEST_F(GroupFailures, ALateSigkillComesBeforeTheExitsItCaused) {
  // Programs that do not use Cohort's collectives: nobody says whom they blame.
  job_.Exit(Exited(0, 1));
  job_.Pass(milliseconds(40));
  job_.Exit(Killed(2, SIGKILL));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 2);
}

TEST_F(GroupFailures, AChainOfBlameLeadsToItsEnd) {
  Fail(0, Failure(0, 1, kUnavailable, "peer 1 failed me", 100));
  Fail(1, Failure(1, 2, kUnavailable, "peer 2 failed me", 101));
  Fail(2, Failure(2, 3, kUnavailable, "peer 3 failed me", 102));
  for (uint32_t rank = 0; rank < 3; ++rank) job_.Exit(Exited(rank, 1));
  job_.Exit(Exited(3, 9));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
  EXPECT_EQ(job_.report()->exit_code(), 9);
}

TEST_F(GroupFailures, ACircleOfBlameStillNamesSomeone) {
  Fail(0, Failure(0, 1, kUnavailable, "peer 1 failed me", 100));
  Fail(1, Failure(1, 0, kUnavailable, "peer 0 failed me", 101));
  job_.Exit(Exited(0, 1));
  job_.Exit(Exited(1, 1));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 0);
}

TEST_F(GroupFailures, BlamingALivingPeerMakesTheFailureItselfTheCause) {
  Fail(0, Failure(0, 1, kUnavailable, "the link to rank 1 broke"));
  for (uint32_t rank = 0; rank < nodes_; ++rank) {
    if (rank != 1) job_.Exit(Exited(rank, 1));
  }
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("rank 0 (node0, pid 1000): the link to rank 1 broke"));
  EXPECT_EQ(job_.report()->exit_code(), 1);
}

// All members fail by it, the one that aborted like the others, in any order.
TEST_F(GroupFailures, TheRankThatAbortedTheGroupIsTheCause) {
  Fail(2, Failure(2, 2, kAborted, "rank 2 aborted the group: the loss is no number"));
  for (const uint32_t rank : {1u, 0u, 3u, 2u}) job_.Exit(Exited(rank, 1));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 2);
  EXPECT_THAT(job_.report()->headline(), HasSubstr("exited with code 1: rank 2 aborted the group: the loss is no"));
}

// A rank gives a call up with what it knows: whom it waits for itself. Who is absent is found out all the same.
TEST_F(GroupFailures, ATimeoutIsExplainedByAnswersThatComeAfterIt) {
  Report(0, Stall(42, /*expired=*/true));
  for (const uint32_t rank : {0u, 2u}) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Fail(1, Failure(1, -1, kDeadlineExceeded, "barrier #42 was not complete after 2 s: rank 1 waits for rank 0"));
  for (const uint32_t rank : {1u, 0u, 2u}) job_.Exit(Exited(rank, 1));
  job_.Pass(seconds(1));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kStop), 0);  // it would end what the answer describes
  EXPECT_TRUE(job_.losses().empty());                           // rank 1 is not the cause
  Answer(Call(1, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  job_.Pass(milliseconds(10));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kStop), 1);
  ASSERT_EQ(job_.losses().size(), 1u);
  EXPECT_THAT(job_.losses()[0], HasSubstr("rank 3 never called barrier() at a.cc:1"));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
  EXPECT_THAT(job_.report()->headline(), HasSubstr("rank 3 never called barrier() at a.cc:1"));
  EXPECT_EQ(job_.report()->exit_code(), 1);
}

// A rank may still wait for one that ends meanwhile: it must be told before the order to stop.
TEST_F(GroupFailures, LossesAreToldWhileATimeoutIsExplained) {
  Report(0, Stall(42, /*expired=*/true));
  Answer(Call(0, 42, "barrier()", "a.cc:1"));
  Fail(1, Failure(1, -1, kDeadlineExceeded, "barrier #42 was not complete after 2 s: rank 1 waits for rank 0"));
  job_.Exit(Exited(1, 1));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kRanksLost), 1);
  job_.Exit(Killed(2, SIGKILL));
  job_.Pass(milliseconds(150));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kStop), 0);
  ASSERT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kRanksLost), 2);
  const v1::RanksLost& lost = job_.Last(Driver::Of(3), v1::ToAgent::kRanksLost)->ranks_lost();
  EXPECT_THAT(lost.ranks(), ElementsAre(2u));
  EXPECT_THAT(lost.text(), HasSubstr("rank 2 (node2, pid 1002) killed by SIGKILL"));
  job_.Pass(milliseconds(3500));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kStop), 1);
}

// Many ranks that end one after another are told of together.
TEST_F(GroupFailures, LaterLossesAreToldTogether) {
  Report(0, Stall(42, /*expired=*/true));
  Answer(Call(0, 42, "barrier()", "a.cc:1"));
  Fail(1, Failure(1, -1, kDeadlineExceeded, "barrier #42 was not complete after 2 s: rank 1 waits for rank 0"));
  job_.Exit(Exited(1, 1));
  for (const uint32_t rank : {2u, 0u}) job_.Exit(Exited(rank, 1));
  job_.Pass(milliseconds(3700));
  ASSERT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kRanksLost), 2);
  const v1::RanksLost& lost = job_.Last(Driver::Of(3), v1::ToAgent::kRanksLost)->ranks_lost();
  EXPECT_THAT(lost.ranks(), ElementsAre(0u, 2u));
  EXPECT_THAT(lost.text(), HasSubstr("ranks 0 and 2 are lost, at first: rank 2 (node2, pid 1002) exited with code 1"));
}

TEST_F(GroupFailures, ATimeoutWhoseVerdictWasToldIsExplainedByIt) {
  Report(0, Stall(42, /*expired=*/true));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  const int asked = Inspections(0);
  Fail(1, Failure(1, -1, kDeadlineExceeded, "barrier #42 was not complete after 2 s: rank 1 waits for rank 0"));
  job_.Exit(Exited(1, 1));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
  EXPECT_EQ(Inspections(0), asked);
}

TEST_F(GroupFailures, TheEndOfAJobDoesNotWaitForeverForAnExplanation) {
  Report(0, Stall(42, /*expired=*/true));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Fail(1, Failure(1, -1, kDeadlineExceeded, "barrier #42 was not complete after 2 s: rank 1 waits for rank 0"));
  job_.Exit(Exited(1, 1));
  job_.Pass(milliseconds(3700));
  EXPECT_EQ(job_.Count(Driver::Of(3), v1::ToAgent::kStop), 1);
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("rank 3 (node3) is unknown, its agent did not answer"));
}

TEST_F(GroupFailures, ARankKilledByDlaunchIsNeverTheCulprit) {
  job_.Exit(Exited(2, 5));
  job_.Pass(milliseconds(150));
  job_.Exit(Killed(0, SIGKILL, /*by_us=*/true));
  job_.Exit(Killed(1, SIGTERM, /*by_us=*/true));
  job_.Exit(Killed(3, SIGKILL, /*by_us=*/true));
  End();
  EXPECT_EQ(job_.report()->culprit_rank(), 2);
  EXPECT_EQ(job_.report()->exit_code(), 5);
}

TEST_F(GroupFailures, ACrashInAnswerToAMismatchIsNotTheCause) {
  Fail(1, Failure(1, -1, kFailedPrecondition, "calls do not match: ..."));
  job_.Exit(Killed(0, SIGSEGV));
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("calls do not match"));
  EXPECT_EQ(job_.report()->exit_code(), 139);
}

class CopingPrograms : public GroupFailures {
 protected:
  CopingPrograms() : GroupFailures(4, "continue") {}
};

TEST_F(CopingPrograms, AFailureThatProgramsCopedWithIsNotReported) {
  Fail(1, Failure(1, -1, kFailedPrecondition, "calls do not match: ..."));
  for (uint32_t rank = 0; rank < nodes_; ++rank) job_.Exit(Exited(rank, 0));
  for (uint32_t node = 0; node < nodes_; ++node) job_.Done(node);
  ASSERT_TRUE(job_.report().has_value());
  EXPECT_EQ(job_.report()->exit_code(), 0);
  EXPECT_EQ(job_.report()->headline(), "");
}

TEST_F(CopingPrograms, ADeathLongAfterAFailureIsACauseOfItsOwn) {
  Fail(1, Failure(1, -1, kFailedPrecondition, "calls do not match: ..."));
  job_.Pass(std::chrono::minutes(6));
  job_.Exit(Killed(2, SIGSEGV));
  for (uint32_t rank : {0u, 1u, 3u}) job_.Exit(Exited(rank, 0));
  for (uint32_t node = 0; node < nodes_; ++node) job_.Done(node);
  ASSERT_TRUE(job_.report().has_value());
  EXPECT_EQ(job_.report()->culprit_rank(), 2);
}

}  // namespace
}  // namespace cohort::launcher
