// Ranks that wait for each other: what the rendezvous asks, and when it decides. Random programs:
// tests/launcher/agent/rank/rank_waits_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/types.h"
#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kGroup = 77;
constexpr uint32_t kFailedPrecondition = 9;

v1::RankWait Receiving(uint32_t rank, uint32_t from, uint64_t number = 1) {
  v1::RankWait wait;
  wait.set_rank(rank);
  wait.set_number(number);
  wait.set_looks(4);
  wait.set_bound(true);
  v1::AwaitedCall& call = *wait.add_calls();
  call.set_group(kGroup);
  call.set_epoch(1);
  call.set_sequence(1);
  call.set_kind(static_cast<uint32_t>(comm::CollectiveKind::kRecv));
  call.set_peer(static_cast<int32_t>(from));
  call.set_bytes(16);
  call.set_call("recv(float32, 4, from " + std::to_string(from) + ")");
  call.set_site("train.cc:" + std::to_string(rank));
  v1::LatestCall& latest = *wait.add_latest();
  latest.set_group(kGroup);
  latest.set_kind(call.kind());
  latest.set_peer(call.peer());
  latest.set_sequence(1);
  return wait;
}

// A job of nodes with one rank each.
class DeadlocksTest : public ::testing::Test {
 protected:
  DeadlocksTest() : job_(3, 1, "end") { job_.JoinAll(); }

  void Report(const v1::RankWait& wait) {
    v1::FromAgent message;
    *message.mutable_waits()->add_waits() = wait;
    v1::WaitedGroup& group = *message.mutable_waits()->add_groups();
    group.set_group(kGroup);
    group.mutable_members()->set_everyone(true);
    job_.Say(wait.rank(), message);
  }
  int Questions(uint32_t node) const { return job_.Count(Driver::Of(node), v1::ToAgent::kWaits); }
  // Answers the latest question: in this wait, after `looks` looks; number 0: in none.
  void Answer(uint32_t rank, uint64_t number, uint64_t looks) {
    const v1::ToAgent* asked = job_.Last(Driver::Of(rank), v1::ToAgent::kWaits);
    ASSERT_NE(asked, nullptr);
    v1::FromAgent message;
    message.mutable_waits()->set_request(asked->waits().request());
    if (number != 0) {
      v1::RankWait& wait = *message.mutable_waits()->add_waits();
      wait.set_rank(rank);
      wait.set_number(number);
      wait.set_looks(looks);
    }
    job_.Say(rank, message);
  }
  void Answer(uint64_t looks) {
    Answer(0, 1, looks);
    Answer(1, 1, looks);
  }
  const v1::GroupFailure* Verdict(uint32_t node) const {
    const v1::ToAgent* message = job_.Last(Driver::Of(node), v1::ToAgent::kGroupFailure);
    return message == nullptr ? nullptr : &message->group_failure();
  }

  Driver job_;
};

TEST_F(DeadlocksTest, ADeadlockIsToldToAllMembersAfterTwoEqualAnswers) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  EXPECT_EQ(Questions(0), 0);
  job_.Pass(milliseconds(30));
  EXPECT_EQ(Questions(0), 1);
  EXPECT_EQ(Questions(2), 0) << "its rank is in no cycle";
  Answer(5);
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(130));
  EXPECT_EQ(Questions(1), 2);
  Answer(7);
  for (uint32_t node = 0; node < 3; ++node) {
    const v1::GroupFailure* verdict = Verdict(node);
    ASSERT_NE(verdict, nullptr);
    EXPECT_EQ(verdict->group(), kGroup);
    EXPECT_EQ(verdict->code(), kFailedPrecondition);
    EXPECT_EQ(verdict->blamed_rank(), -1);
    EXPECT_THAT(verdict->text(), HasSubstr("ranks 0,1 wait for each other (deadlock)"));
    EXPECT_THAT(verdict->text(), HasSubstr("rank 0 is in recv(float32, 4, from 1) at train.cc:0 and waits for rank 1"));
    EXPECT_THAT(verdict->text(), HasSubstr("rank 1 is in recv(float32, 4, from 0) at train.cc:1 and waits for rank 0"));
  }
  for (uint32_t rank = 0; rank < 3; ++rank) job_.Exit(Exited(rank, 1));
  job_.Pass(milliseconds(200));
  job_.EndAllAsTold();
  ASSERT_TRUE(job_.report().has_value());
  EXPECT_THAT(job_.report()->headline(), HasSubstr("wait for each other"));
  EXPECT_EQ(job_.report()->culprit_rank(), -1);
}

TEST_F(DeadlocksTest, AMovementBetweenTheQuestionsIsNoDeadlock) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(5);
  job_.Pass(milliseconds(130));
  Answer(0, 1, 7);
  Answer(1, 3, 1);  // another wait
  job_.Pass(milliseconds(3000));
  EXPECT_EQ(Verdict(0), nullptr);
  EXPECT_EQ(Questions(0), 2);
  // The other wait is told, and closes a cycle again.
  Report(Receiving(1, 0, 3));
  job_.Pass(milliseconds(30));
  EXPECT_EQ(Questions(0), 3);
}

TEST_F(DeadlocksTest, ARankThatNoLongerWaitsIsInNoDeadlock) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(0, 1, 5);
  Answer(1, 0, 0);
  job_.Pass(milliseconds(3000));
  EXPECT_EQ(Verdict(0), nullptr);
  EXPECT_EQ(Questions(0), 1);
}

TEST_F(DeadlocksTest, ARankThatHasNotLookedSinceIsAskedAgain) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(5);
  job_.Pass(milliseconds(130));
  Answer(6);
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(260));
  EXPECT_EQ(Questions(0), 3);
  Answer(7);
  EXPECT_NE(Verdict(0), nullptr);
}

// The new wait must be asked about twice as the old one was.
TEST_F(DeadlocksTest, AWaitReportedBetweenTheQuestionsIsAnotherWait) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(5);
  Report(Receiving(1, 0, 3));
  job_.Pass(milliseconds(130));
  Answer(0, 1, 7);
  Answer(1, 3, 4);
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(30));
  Answer(0, 1, 8);
  Answer(1, 3, 5);
  EXPECT_EQ(Verdict(0), nullptr);
  job_.Pass(milliseconds(130));
  Answer(0, 1, 10);
  Answer(1, 3, 7);
  EXPECT_NE(Verdict(0), nullptr);
}

TEST_F(DeadlocksTest, AWaitReportedAfterItsRanksAnswerIsNotForgotten) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(1, 1, 5);
  Report(Receiving(1, 0, 3));
  Answer(0, 1, 5);
  job_.Pass(milliseconds(30));
  EXPECT_EQ(Questions(1), 2);
  Answer(0, 1, 6);
  Answer(1, 3, 1);
  job_.Pass(milliseconds(130));
  Answer(0, 1, 8);
  Answer(1, 3, 3);
  EXPECT_NE(Verdict(0), nullptr);
}

// On a busy machine a rank looks rarely, and others keep reporting waits.
TEST_F(DeadlocksTest, WaitsOfOtherRanksDoNotBeginTheQuestionsAgain) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  for (uint64_t round = 0; round < 3 && Verdict(0) == nullptr; ++round) {
    Answer(5 + round);
    Report(Receiving(2, 0, 2 * round + 1));
    job_.Pass(milliseconds(130));
    Answer(5 + round);
    job_.Pass(milliseconds(30));
  }
  EXPECT_NE(Verdict(0), nullptr);
}

TEST_F(DeadlocksTest, AnAgentThatDoesNotAnswerInTimeIsAskedAgain) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(0, 1, 5);
  job_.Pass(milliseconds(340));
  EXPECT_EQ(Verdict(0), nullptr);
  EXPECT_EQ(Questions(1), 2);
  Answer(5);
  job_.Pass(milliseconds(130));
  Answer(7);
  EXPECT_NE(Verdict(0), nullptr);
}

TEST_F(DeadlocksTest, AnAgentThatIsLateWithItsSecondAnswerIsAskedAgain) {
  Report(Receiving(0, 1));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(30));
  Answer(5);
  job_.Pass(milliseconds(130));
  Answer(0, 1, 7);
  job_.Pass(milliseconds(340));
  EXPECT_EQ(Questions(1), 3);
  Answer(9);
  job_.Pass(milliseconds(130));
  Answer(11);
  EXPECT_NE(Verdict(0), nullptr);
}

TEST_F(DeadlocksTest, ARankThatHasEndedIsInNoDeadlock) {
  Report(Receiving(0, 1));
  job_.Exit(Exited(1, 0));
  Report(Receiving(1, 0));
  job_.Pass(milliseconds(1000));
  EXPECT_EQ(Questions(0), 0);
}

TEST_F(DeadlocksTest, ReportsAboutRanksOfOtherNodesAreIgnored) {
  v1::FromAgent message;
  *message.mutable_waits()->add_waits() = Receiving(0, 1);
  *message.mutable_waits()->add_waits() = Receiving(1, 0);
  job_.Say(2, message);
  job_.Pass(milliseconds(1000));
  EXPECT_EQ(Questions(0), 0);
  EXPECT_FALSE(job_.Closed(Driver::Of(2)));
}

}  // namespace
}  // namespace cohort::launcher
