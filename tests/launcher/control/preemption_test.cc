// Notices of a preemption in the rendezvous: who is told, on which step all agree, and what the job is said to have
// ended with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <random>

#include "cohort/launcher/control/parts/step_agreement.h"
#include "cohort/launcher/options/options.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

v1::NodeStep At(uint64_t step, bool left = false) {
  v1::NodeStep answer;
  answer.set_step(step);
  answer.set_left(left);
  return answer;
}

void Wish(Driver& job, uint32_t node) {
  v1::FromAgent message;
  message.mutable_preemption();
  job.Say(node, message);
}

// In the present epoch, unless another is given.
void Answer(Driver& job, uint32_t node, const v1::NodeStep& step, std::optional<uint64_t> epoch = {}) {
  v1::FromAgent message;
  *message.mutable_preemption_step() = step;
  message.mutable_preemption_step()->set_epoch(epoch.value_or(job.epoch()));
  job.Say(node, message);
}

void Preempted(Driver& job, uint32_t node, uint64_t step, std::optional<uint64_t> epoch = {}) {
  v1::FromAgent message;
  message.mutable_preempted()->set_step(step);
  message.mutable_preempted()->set_epoch(epoch.value_or(job.epoch()));
  job.Say(node, message);
}

const v1::StopStep* StopStepOf(const Driver& job, uint32_t node) {
  const v1::ToAgent* const message = job.Last(Driver::Of(node), v1::ToAgent::kStopStep);
  return message == nullptr ? nullptr : &message->stop_step();
}

v1::JobPlan OneRankAndRestarts() {
  v1::JobPlan plan = MakePlan(1, 1, "restart");
  plan.mutable_job()->set_max_restarts(5);
  return plan;
}

v1::JobPlan TwoRanksAndRestarts() {
  v1::JobPlan plan = MakePlan(1, 2, "restart");
  plan.mutable_job()->set_max_restarts(5);
  return plan;
}

TEST(StepAgreement, TheGreatestStepIsAgreedOnInAnyOrderOfAnswers) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint32_t nodes = 1 + random() % 9;
    std::vector<uint32_t> order(nodes);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    StepAgreement agreement(nodes);
    uint64_t greatest = 0;
    bool none = false;
    for (uint32_t i = 0; i < nodes; ++i) {
      EXPECT_FALSE(agreement.Take().has_value());
      if (random() % 8 == 0) {
        agreement.DoWithout(order[i]);
      } else {
        const v1::NodeStep answer = At(random() % 100, random() % 16 == 0);
        greatest = std::max(greatest, answer.step());
        none = none || answer.left();
        agreement.Answer(order[i], answer);
      }
      agreement.Answer(order[i], At(1000));  // too late to count
    }
    const std::optional<v1::StopStep> agreed = agreement.Take();
    ASSERT_TRUE(agreed.has_value());
    EXPECT_EQ(agreed->step(), greatest);
    EXPECT_EQ(agreed->none(), none);
    EXPECT_FALSE(agreement.Take().has_value());
  }
}

TEST(Preemption, ProgramsThatDoNotAskGetTheSignal) {
  Driver job(2, 1);
  job.JoinAll();
  job.Handle(NoticeGiven{SIGUSR1});
  for (const uint32_t node : {0u, 1u}) {
    ASSERT_NE(job.Last(Driver::Of(node), v1::ToAgent::kPassOnSignal), nullptr);
    EXPECT_EQ(job.Last(Driver::Of(node), v1::ToAgent::kPassOnSignal)->pass_on_signal(), SIGUSR1);
    EXPECT_EQ(job.Last(Driver::Of(node), v1::ToAgent::kPreemption), nullptr);
  }
  job.Forget();
  v1::FromAgent own;
  own.set_notice_signal(SIGUSR2);  // came to that agent alone
  job.Say(1, own);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kPassOnSignal), nullptr);
  EXPECT_EQ(job.Last(Driver::Of(1), v1::ToAgent::kPassOnSignal)->pass_on_signal(), SIGUSR2);
  job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
  EXPECT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
}

TEST(Preemption, AllRanksStopAtTheGreatestStepAndTheJobIsPreempted) {
  Driver job(2, 2);
  job.JoinAll();
  Wish(job, 1);
  job.Handle(NoticeGiven{SIGUSR1});
  job.Handle(NoticeGiven{SIGUSR1});  // again: nothing new
  for (const uint32_t node : {0u, 1u}) EXPECT_EQ(job.Count(Driver::Of(node), v1::ToAgent::kPreemption), 1);
  Answer(job, 0, At(7));
  EXPECT_EQ(StopStepOf(job, 0), nullptr);
  Answer(job, 1, At(9));
  for (const uint32_t node : {0u, 1u}) {
    ASSERT_NE(StopStepOf(job, node), nullptr);
    EXPECT_EQ(StopStepOf(job, node)->step(), 9u);
    EXPECT_FALSE(StopStepOf(job, node)->none());
  }
  Preempted(job, 0, 9);
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(Exited(rank, 0));
  job.Done(0);
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), kExitPreempted);
  EXPECT_EQ(job.report()->preempted_by(), SIGUSR1);
  EXPECT_EQ(job.report()->stop_step(), 9u);
  EXPECT_EQ(job.report()->headline(), "preempted (SIGUSR1): all ranks stopped before step 9, as agreed");
}

TEST(Preemption, APreemptedJobIsNotRestarted) {
  v1::JobPlan plan = MakePlan(1, 1, "restart");
  plan.mutable_job()->set_max_restarts(5);
  Driver job(plan);
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR2});
  Answer(job, 0, At(3));
  Preempted(job, 0, 3);
  job.Exit(Exited(0, 0));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), kExitPreempted);
  EXPECT_TRUE(job.restarts().empty());
}

TEST(Preemption, ARankThatFailsInsteadOfStoppingIsTheCause) {
  Driver job(1, 2);
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  Answer(job, 0, At(3));
  Preempted(job, 0, 3);
  job.Exit(Exited(0, 0));
  job.Exit(Exited(1, 4));  // its checkpoint could not be written
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 4);
  EXPECT_EQ(job.report()->culprit_rank(), 1);
  EXPECT_EQ(job.report()->preempted_by(), 0);
}

TEST(Preemption, PreemptionGoesOnWhereARankHasEndedBefore) {
  Driver job(2, 1);
  job.JoinAll();
  Wish(job, 0);
  job.Exit(Exited(1, 0));
  job.Done(1);
  job.Handle(NoticeGiven{SIGUSR1});
  Answer(job, 0, At(5));
  ASSERT_NE(StopStepOf(job, 0), nullptr);
  EXPECT_TRUE(StopStepOf(job, 0)->none());
  job.Exit(Exited(0, 0));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 0);
}

TEST(Preemption, SurvivorsAgreeWithoutALostNode) {
  Driver job(3, 1, "continue");
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  Answer(job, 0, At(5));
  Answer(job, 1, At(6));
  EXPECT_EQ(StopStepOf(job, 0), nullptr);
  job.Handle(Disconnected{Driver::Of(2), "its connection broke"});
  ASSERT_NE(StopStepOf(job, 0), nullptr);
  EXPECT_EQ(StopStepOf(job, 0)->step(), 6u);
}

TEST(Preemption, TheAnswerOfALostRankCounts) {
  Driver job(2, 2, "continue");
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  Answer(job, 0, At(9));
  job.Exit(Killed(0, SIGKILL));
  job.Exit(Killed(1, SIGKILL));
  job.Done(0);  // what the rendezvous knows of the node is no second answer
  EXPECT_EQ(StopStepOf(job, 1), nullptr);
  Answer(job, 1, At(8));
  ASSERT_NE(StopStepOf(job, 1), nullptr);
  EXPECT_EQ(StopStepOf(job, 1)->step(), 9u) << "those left may have begun it with the lost ones";
  EXPECT_FALSE(StopStepOf(job, 1)->none());
  Preempted(job, 1, 9);
  for (const uint32_t rank : {2u, 3u}) job.Exit(Exited(rank, 0));
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 128 + SIGKILL);
  EXPECT_EQ(job.report()->culprit_rank(), 0);
}

TEST(Preemption, SigtermLeavesRanksTheGraceAndNoMore) {
  Driver job(1, 2);  // 2 s
  job.JoinAll();
  Wish(job, 0);
  job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kPreemption), 1);
  job.Pass(milliseconds(1900));
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  job.Pass(milliseconds(200));
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kStop)->stop().grace_ms(), 0u);
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 143);
  EXPECT_THAT(job.report()->headline(), HasSubstr("had not stopped by themselves within the grace"));
}

TEST(Preemption, AFailureMeanwhileDoesNotBeginTheGraceAgain) {
  Driver job(TwoRanksAndRestarts());
  job.JoinAll();
  Wish(job, 0);
  job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
  job.Pass(milliseconds(1500));  // of 2 s
  job.Exit(Exited(1, 4));
  job.Pass(milliseconds(200));
  const v1::ToAgent* const stop = job.Last(Driver::Of(0), v1::ToAgent::kStop);
  ASSERT_NE(stop, nullptr);
  EXPECT_GT(stop->stop().grace_ms(), 200u);
  EXPECT_LE(stop->stop().grace_ms(), 410u);  // 100 ms pass between a failure and the order
  EXPECT_FALSE(stop->stop().restarting());
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 4);
  EXPECT_EQ(job.report()->culprit_rank(), 1);
  EXPECT_EQ(job.report()->not_restarted(), "the job had been told to end");
}

TEST(Preemption, SigtermAtAnAgentIsAnOrderToStop) {
  Driver job(TwoRanksAndRestarts());
  job.JoinAll();
  Wish(job, 0);
  v1::FromAgent order;
  order.mutable_stop()->set_reason("the agent of node0 got SIGTERM");
  order.mutable_stop()->set_exit_code(143);
  order.mutable_stop()->set_signal(SIGTERM);
  job.Say(0, order);
  job.Say(0, order);  // each agent says so: a scheduler tells all
  job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kPreemption), 1);
  job.Pass(milliseconds(1900));
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  job.Pass(milliseconds(200));
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 143);
  EXPECT_EQ(job.report()->headline(),
            "the agent of node0 got SIGTERM, and the ranks had not stopped by themselves within the grace");
  EXPECT_TRUE(job.restarts().empty());
}

TEST(Preemption, ASecondSignalDoesNotWait) {
  Driver job(1, 1);
  job.JoinAll();
  Wish(job, 0);
  job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
  job.Handle(StopRequested{"stopped by SIGINT", 130});
  EXPECT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 130);
}

TEST(Preemption, TheNextEpochIsToldOfANotice) {
  v1::JobPlan plan = MakePlan(1, 1, "restart");
  plan.mutable_job()->set_max_restarts(5);
  Driver job(plan);
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  job.Exit(Exited(0, 9));
  job.Done(0);
  job.Pass(milliseconds(10));
  ASSERT_EQ(job.restarts().size(), 1u);
  job.Forget();
  Wish(job, 0);
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kPreemption), 1);
  Answer(job, 0, At(2));
  ASSERT_NE(StopStepOf(job, 0), nullptr);
  EXPECT_EQ(StopStepOf(job, 0)->step(), 2u);
}

// A job of one rank, which fails; the ranks of the second epoch are told of a notice that was given in the first.
void BeginASecondEpochAfterANotice(Driver& job) {
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  job.Exit(Exited(0, 9));
  job.Done(0);
  job.Pass(milliseconds(10));
  Wish(job, 0);
  job.Forget();
}

TEST(Preemption, AnAnswerOfAnotherEpochIsIgnored) {
  Driver job(OneRankAndRestarts());
  BeginASecondEpochAfterANotice(job);
  ASSERT_EQ(job.epoch(), 2u);
  for (const uint64_t other : {0u, 1u, 3u}) {
    Answer(job, 0, At(700), other);
    EXPECT_EQ(StopStepOf(job, 0), nullptr) << other;
  }
  Answer(job, 0, At(7));
  ASSERT_NE(StopStepOf(job, 0), nullptr);
  EXPECT_EQ(StopStepOf(job, 0)->step(), 7u);
}

TEST(Preemption, ARankThatStoppedInAnotherEpochDoesNotEndThisOneAsPreempted) {
  Driver job(OneRankAndRestarts());
  BeginASecondEpochAfterANotice(job);
  Answer(job, 0, At(7));
  for (const uint64_t other : {0u, 1u, 3u}) Preempted(job, 0, 700, other);
  job.Exit(Exited(0, 0));  // it came to its last step before the agreed one
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 0);
  EXPECT_EQ(job.report()->preempted_by(), 0);
}

// A rank asks for notices, and fails.
void FailAfterAWish(Driver& job) {
  job.JoinAll();
  Wish(job, 0);
  job.Exit(Exited(0, 9));
  job.Pass(milliseconds(200));
}

void BeginTheNextEpoch(Driver& job) {
  job.Exit(Killed(1, SIGTERM, true));
  job.Done(0);
  job.Pass(milliseconds(10));
  ASSERT_EQ(job.restarts().size(), 1u);
}

TEST(Preemption, ProgramsThatHaveAskedOnceGetNoSignalBeforeTheyAskAgain) {
  for (const bool ordered : {false, true}) {
    SCOPED_TRACE(ordered);
    Driver job(TwoRanksAndRestarts());
    FailAfterAWish(job);
    BeginTheNextEpoch(job);
    job.Forget();
    if (ordered) {
      job.Handle(StopRequested{"stopped by SIGTERM", 143, SIGTERM});
    } else {
      job.Handle(NoticeGiven{SIGUSR1});
    }
    EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kPassOnSignal), nullptr);
    EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
    Wish(job, 0);
    EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kPreemption), 1);
    Answer(job, 0, At(4));
    ASSERT_NE(StopStepOf(job, 0), nullptr);
    EXPECT_EQ(StopStepOf(job, 0)->step(), 4u);
  }
}

TEST(Preemption, ANoticeWhileTheRanksEndIsForTheNextEpoch) {
  Driver job(TwoRanksAndRestarts());
  FailAfterAWish(job);
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  job.Handle(NoticeGiven{SIGUSR2});
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kPassOnSignal), nullptr);
  BeginTheNextEpoch(job);
  Wish(job, 0);
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kPreemption), nullptr);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kPreemption)->preemption().signal(), SIGUSR2);
}

TEST(Preemption, ANodeThatIsDoneNeedNotAnswer) {
  Driver job(2, 1);
  job.JoinAll();
  Wish(job, 0);
  job.Handle(NoticeGiven{SIGUSR1});
  Answer(job, 0, At(5));
  EXPECT_EQ(StopStepOf(job, 0), nullptr);
  job.Exit(Exited(1, 0));  // it was on its way
  job.Done(1);
  ASSERT_NE(StopStepOf(job, 0), nullptr);
  EXPECT_TRUE(StopStepOf(job, 0)->none());
}

TEST(Gathering, AnAgentThatEndsBeforeItHasJoinedEndsTheJobAtOnce) {
  Driver job(2, 1);
  job.Join(0);
  job.Handle(AgentEnded{1, "the agent of node1 (pid 7) was killed by SIGKILL"});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), kExitLauncher);
  EXPECT_EQ(job.report()->headline(), "the agent of node1 (pid 7) was killed by SIGKILL, before the job had started");
}

}  // namespace
}  // namespace cohort::launcher
