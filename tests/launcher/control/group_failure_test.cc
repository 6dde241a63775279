// Stalled operations and failed groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/launcher/control/group_failures.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(GroupFailures, AStallIsInspectedAndAMismatchToldToAll) {
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "all_reduce(sum, float32, 8)", "train.cc:88"));
  EXPECT_EQ(Verdict(0), nullptr);
  Answer(Call(3, 42, "broadcast(float32, 8, root 0)", "train.cc:90"));
  for (uint32_t node = 0; node < nodes_; ++node) {
    const v1::GroupFailure* verdict = Verdict(node);
    ASSERT_NE(verdict, nullptr);
    EXPECT_EQ(verdict->code(), kFailedPrecondition);
    EXPECT_EQ(verdict->blamed_rank(), 3);
    EXPECT_EQ(verdict->from_rank(), -1);
    EXPECT_THAT(verdict->text(), HasSubstr("ranks 0-2 called all_reduce(sum, float32, 8) at train.cc:88"));
    EXPECT_THAT(verdict->text(), HasSubstr("rank 3 called broadcast(float32, 8, root 0) at train.cc:90"));
  }
  for (uint32_t rank = 0; rank < nodes_; ++rank) job_.Exit(Exited(rank, 1));
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("calls do not match"));
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
  EXPECT_EQ(job_.report()->exit_code(), 1);
}

class WatchedCalls : public GroupFailures {
 protected:
  static constexpr char kCall[] = "all_reduce(float32, 8)";

  static v1::StallReport Watched(uint64_t sequence, bool expired = false) {
    v1::StallReport stall = Stall(sequence, expired);
    stall.set_watched(true);
    return stall;
  }
  void AnswerAllBut(uint32_t absent, uint64_t sequence) {
    for (uint32_t rank = 0; rank < nodes_; ++rank) {
      if (rank != absent) Answer(Call(rank, sequence, kCall, ""));
    }
  }
  // The rank ends with 1 while it waits in that call, or after it has aborted the communicator.
  void FailIn(uint32_t rank, uint64_t sequence, bool aborted = false) {
    v1::RankExit exit = Exited(rank, 1);
    *exit.mutable_doing() = Call(rank, sequence, kCall, "");
    exit.mutable_doing()->set_done(aborted);
    exit.mutable_doing()->set_failed(aborted);
    job_.Exit(exit);
  }
};

TEST_F(WatchedCalls, AMismatchIsToldToOneAgentForPeople) {
  Report(1, Watched(42));
  AnswerAllBut(3, 42);
  Answer(Call(3, 42, "broadcast(float32, 8, root 0)", ""));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_TRUE(Verdict(0)->watched());
  EXPECT_THAT(Verdict(0)->text(), HasSubstr("rank 3 called broadcast(float32, 8, root 0)"));
  for (uint32_t node = 1; node < nodes_; ++node) EXPECT_EQ(Verdict(node), nullptr);
  Report(1, Watched(42));  // it waits still
  job_.Pass(milliseconds(200));
  AnswerAllBut(3, 42);
  Answer(Call(3, 42, "broadcast(float32, 8, root 0)", ""));
  EXPECT_EQ(job_.Count(Driver::Of(0), v1::ToAgent::kGroupFailure), 1);
  FailIn(1, 42);  // its watchdog, an hour later
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("calls do not match"));
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
}

TEST_F(WatchedCalls, ALateRankIsNamedInTheReportAlone) {
  Report(0, Watched(42));
  AnswerAllBut(3, 42);
  Answer(Elsewhere(3, 1, "barrier()", ""));
  Report(0, Watched(42, /*expired=*/true));
  job_.Pass(milliseconds(200));
  AnswerAllBut(3, 42);
  Answer(Elsewhere(3, 1, "barrier()", ""));
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(std::chrono::minutes(10));
  for (uint32_t rank = 0; rank < 3; ++rank) FailIn(rank, 42, /*aborted=*/rank != 1);
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("rank 3 never called all_reduce(float32, 8) (operation #42"));
  EXPECT_THAT(job_.report()->headline(), HasSubstr("; waited for 0.06 s"));
  EXPECT_THAT(job_.report()->headline(), Not(HasSubstr("CallOptions")));
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
}

TEST_F(WatchedCalls, AGroupGoesOnAndALaterFailureIsItsOwn) {
  Report(0, Watched(42, /*expired=*/true));
  AnswerAllBut(3, 42);
  Answer(Elsewhere(3, 1, "barrier()", ""));
  FailIn(1, 43);  // all came to 42 after all
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("exited with code 1"));
  EXPECT_EQ(job_.report()->culprit_rank(), 1);
}

TEST_F(WatchedCalls, AMismatchAfterALateRankIsTold) {
  Report(0, Watched(42, /*expired=*/true));
  AnswerAllBut(3, 42);
  Answer(Elsewhere(3, 1, "barrier()", ""));
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(1000));
  Report(0, Watched(43));
  AnswerAllBut(3, 43);
  Answer(Call(3, 43, "broadcast(float32, 8, root 0)", ""));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->sequence(), 43u);
}

TEST_F(GroupFailures, EqualReportsLeadToOneQuestion) {
  for (uint32_t rank = 0; rank < nodes_; ++rank) Report(rank, Stall(42));
  EXPECT_EQ(Inspections(2), 1);
  for (uint32_t rank = 0; rank < nodes_; ++rank) Report(rank, Stall(42));
  EXPECT_EQ(Inspections(2), 1);
}

TEST_F(GroupFailures, AbsentRanksAreAskedAgainUntilTheyCallSomethingElse) {
  Report(0, Stall(42));
  bool found = false;
  int rounds = 0;
  for (int step = 0; step < 300 && !found; ++step) {  // 3 s
    if (Inspections(0) > rounds) {
      rounds = Inspections(0);
      for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "all_reduce(sum, float32, 8)", "a.cc:1"));
      v1::CallState other = Call(3, 42, "broadcast(float32, 8, root 3)", "a.cc:2");
      other.set_done(true);  // as root it did not have to wait for anybody, and so never stalls
      Answer(rounds < 4 ? Elsewhere(3, 1, "barrier()", "b.cc:1") : other);
    }
    found = Verdict(0) != nullptr;
    job_.Pass(milliseconds(10));
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(Verdict(1)->code(), kFailedPrecondition);
  EXPECT_LE(rounds, 5);
}

TEST_F(GroupFailures, AgreementNeedsNoFurtherQuestions) {
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < nodes_; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  job_.Pass(seconds(5));
  EXPECT_EQ(Inspections(0), 1);
  EXPECT_EQ(Verdict(0), nullptr);
}

TEST_F(GroupFailures, AnAgentThatDoesNotAnswerIsNotWaitedForForever) {
  Report(0, Stall(42, /*expired=*/true));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  job_.Pass(milliseconds(3300));
  EXPECT_EQ(Verdict(0), nullptr);  // it may still answer
  job_.Pass(milliseconds(200));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->code(), kDeadlineExceeded);
  EXPECT_THAT(Verdict(0)->text(), HasSubstr("rank 3 (node3) is unknown, its agent did not answer"));
}

// A question that was put before the call's time was over is not waited for as long, and is put again.
TEST_F(GroupFailures, AnAnswerThatCameTooLateForAStallCountsOnceTheTimeIsOver) {
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Report(0, Stall(42, /*expired=*/true));
  job_.Pass(milliseconds(400));
  EXPECT_EQ(Verdict(0), nullptr);
  EXPECT_EQ(Inspections(3), 2);
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->blamed_rank(), 3);
}

TEST_F(GroupFailures, AnAnswerThatHasArrivedCountsHoweverLateItIsRead) {
  Report(0, Stall(42, /*expired=*/true));
  job_.Freeze(milliseconds(400));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  job_.Tick();
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->blamed_rank(), 3);
  EXPECT_THAT(Verdict(0)->text(), HasSubstr("is in recv #7 of group 0000000000000005 at b.cc:2"));
}

TEST_F(GroupFailures, AnExpiredOperationNamesTheRankThatNeverCalledAndItsState) {
  Report(1, Stall(42));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  EXPECT_EQ(Verdict(0), nullptr);  // may still come
  job_.Forget();
  Report(1, Stall(42, /*expired=*/true));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  Answer(Elsewhere(3, 7, "recv(float32, 4)", "b.cc:2"));
  ASSERT_NE(Verdict(2), nullptr);
  EXPECT_EQ(Verdict(2)->code(), kDeadlineExceeded);
  EXPECT_EQ(Verdict(2)->blamed_rank(), 3);
  EXPECT_THAT(Verdict(2)->text(),
              HasSubstr("rank 3 never called barrier() at a.cc:1 (operation #42 of group 000000000000004d), which"));
  EXPECT_THAT(Verdict(2)->text(), HasSubstr("is in recv #7 of group 0000000000000005 at b.cc:2"));
}

TEST_F(GroupFailures, ARankThatLeftWithoutCallingFailsTheGroupAtOnce) {
  job_.Exit(Exited(3, 0));
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  v1::CallState none;
  none.set_rank(3);
  Answer(none);  // its box outlives it
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->code(), kUnavailable);
  EXPECT_THAT(Verdict(0)->text(), HasSubstr("rank 3 (node3) exited with code 0"));
  for (uint32_t rank = 0; rank < 3; ++rank) job_.Exit(Exited(rank, 1));
  End();
  EXPECT_THAT(job_.report()->headline(), HasSubstr("exited with code 0"));
  EXPECT_EQ(job_.report()->culprit_rank(), 3);
  EXPECT_EQ(job_.report()->exit_code(), 1);
}

// Its agent has answered before, and the others' only answer afterwards.
TEST_F(GroupFailures, ARankThatCompletesItsCallAndEndsBetweenTwoAnswersIsNotBlamed) {
  Report(0, Stall(42));
  v1::CallState call = Call(1, 42, "barrier()", "a.cc:1");
  Answer(call);
  call.set_done(true);
  v1::RankExit exit = Exited(1, 0);
  *exit.mutable_doing() = call;
  job_.Exit(exit);
  for (const uint32_t other : {0u, 2u, 3u}) Answer(Call(other, 42, "barrier()", "a.cc:1"));
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(600));
  EXPECT_EQ(Verdict(0), nullptr);
}

TEST_F(GroupFailures, ARankThatCompletesItsCallAndStaysBetweenTwoAnswersIsNotBlamed) {
  Report(0, Stall(42));
  v1::CallState call = Call(1, 42, "barrier()", "a.cc:1");
  Answer(call);
  call.set_done(true);
  v1::FromAgent message;
  message.mutable_stays()->set_rank(1);
  message.mutable_stays()->set_epoch(1);
  *message.mutable_stays()->mutable_doing() = call;
  job_.Say(1, message);
  for (const uint32_t other : {0u, 2u, 3u}) Answer(Call(other, 42, "barrier()", "a.cc:1"));
  EXPECT_EQ(Verdict(0), nullptr);
}

TEST_F(GroupFailures, ARankThatLeavesACallWhoseStallIsKnownFailsTheGroupAtOnce) {
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < nodes_; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(seconds(1));
  v1::RankExit exit = Exited(3, 0);
  *exit.mutable_doing() = Call(3, 42, "barrier()", "a.cc:1");
  job_.Exit(exit);
  for (uint32_t rank = 0; rank < nodes_; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_EQ(Verdict(0)->code(), kUnavailable);
  EXPECT_EQ(Verdict(0)->blamed_rank(), 3);
}

// The end of a rank tells only its last call: of another group, that is no word on what it did in this one.
TEST_F(GroupFailures, ARankThatEndedAfterACallElsewhereIsNotTakenForAbsent) {
  v1::RankExit exit = Exited(3, 0);
  *exit.mutable_doing() = Elsewhere(3, 7, "barrier()", "b.cc:2");
  job_.Exit(exit);
  Report(0, Stall(42));
  for (uint32_t rank = 0; rank < 3; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  job_.Pass(seconds(1));  // node 3 does not answer
  EXPECT_EQ(Verdict(0), nullptr);
}

TEST_F(GroupFailures, TheFirstFailureOfAGroupIsToldOnce) {
  Fail(1, Failure(1, -1, 13, "first"));
  Fail(2, Failure(2, -1, 13, "second"));
  Fail(2, Failure(2, -1, 13, "other group", 78));
  for (uint32_t node = 0; node < nodes_; ++node) {
    EXPECT_EQ(job_.Count(Driver::Of(node), v1::ToAgent::kGroupFailure), 2);
    EXPECT_EQ(Verdict(node)->text(), "other group");
  }
  Report(3, Stall(9));  // about a failed group nothing is asked
  EXPECT_EQ(Inspections(0), 0);
}

TEST_F(GroupFailures, AVerdictEndsTheQuestionsAboutOtherOperationsOfItsGroup) {
  Report(0, Stall(43));
  Report(0, Stall(42, /*expired=*/true));
  job_.Pass(milliseconds(3500));  // nobody answers
  ASSERT_NE(Verdict(1), nullptr);
  EXPECT_EQ(Verdict(1)->code(), kDeadlineExceeded);
  Fail(1, Failure(1, -1, kDeadlineExceeded, Verdict(1)->text()));
  const int asked = Inspections(0);
  job_.Pass(seconds(2));
  EXPECT_EQ(Inspections(0), asked);
  EXPECT_EQ(job_.Count(Driver::Of(1), v1::ToAgent::kGroupFailure), 2);
}

// All members may have completed the operation while the answer was on its way: only they know.
TEST_F(GroupFailures, AnExpiredOperationEndsTheGroupOnlyWhenAMemberSaysSo) {
  Report(0, Stall(42, /*expired=*/true));
  for (uint32_t rank = 0; rank < nodes_; ++rank) Answer(Call(rank, 42, "barrier()", "a.cc:1"));
  ASSERT_NE(Verdict(2), nullptr);
  EXPECT_EQ(Verdict(2)->code(), kDeadlineExceeded);
  EXPECT_EQ(Verdict(2)->sequence(), 42u);
  job_.Forget();
  Report(0, Stall(43));  // the group goes on
  EXPECT_EQ(Inspections(0), 1);
  v1::GroupFailure said = Failure(1, -1, kDeadlineExceeded, "barrier is not complete");
  said.set_sequence(7);  // not for ranks to say
  Fail(1, said);
  ASSERT_NE(Verdict(2), nullptr);
  EXPECT_EQ(Verdict(2)->sequence(), 0u);
  EXPECT_EQ(Verdict(2)->text(), "barrier is not complete");
}

TEST_F(GroupFailures, AFailureWithoutATextGetsOne) {
  Fail(1, Failure(1, -1, kUnavailable, ""));
  ASSERT_NE(Verdict(0), nullptr);
  EXPECT_THAT(Verdict(0)->text(), HasSubstr("no reason was given"));
  Fail(1, Failure(1, -1, kUnavailable, std::string(100'000, 'x'), /*group=*/78));
  EXPECT_EQ(Verdict(0)->text().size(), 16u << 10);
}

TEST_F(GroupFailures, OnlyTheNodesOfMembersAreTold) {
  v1::GroupFailure failure = Failure(1, -1, 13, "boom");
  failure.mutable_members()->set_everyone(false);
  failure.mutable_members()->add_ranks(1);
  failure.mutable_members()->add_ranks(2);
  Fail(1, failure);
  EXPECT_EQ(Verdict(0), nullptr);
  EXPECT_NE(Verdict(1), nullptr);
  EXPECT_NE(Verdict(2), nullptr);
  EXPECT_EQ(Verdict(3), nullptr);
}

// A rank's report without a sequence is nonsense, but its group's failure must not leave anything of it behind.
TEST_F(GroupFailures, ALateAnswerAboutAFailedGroupsSequenceZeroIsIgnored) {
  Report(0, Stall(0));
  ASSERT_EQ(Inspections(1), 1);
  Fail(0, Failure(0, 3, kUnavailable, "rank 3 is lost"));
  for (uint32_t rank = 0; rank < nodes_; ++rank) Answer(Call(rank, 0, "barrier()", "a.cc:1"));
  Report(1, Stall(42));
  job_.Pass(seconds(1));
  EXPECT_EQ(Inspections(1), 1);
  for (uint32_t node = 0; node < nodes_; ++node) EXPECT_FALSE(job_.Closed(Driver::Of(node)));
}

TEST_F(GroupFailures, NonsenseFromRanksIsIgnored) {
  v1::GroupFailure failure = Failure(1, 99, 13, "blames nobody");
  Fail(1, failure);
  failure = Failure(0, -1, 13, "speaks for another node's rank");
  Fail(1, failure);
  failure = Failure(1, -1, 0, "no failure");
  Fail(1, failure);
  failure = Failure(1, -1, 13, "no such member");
  failure.mutable_members()->set_everyone(false);
  failure.mutable_members()->add_ranks(4);
  Fail(1, failure);
  v1::StallReport stall = Stall(1);
  stall.mutable_members()->set_everyone(false);
  Report(0, stall);
  EXPECT_EQ(Verdict(1), nullptr);
  EXPECT_EQ(Inspections(0), 0);
  EXPECT_FALSE(job_.Closed(Driver::Of(1)));
}

}  // namespace
}  // namespace cohort::launcher
