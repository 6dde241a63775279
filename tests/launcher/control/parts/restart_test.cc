// Restarts in the rendezvous: who begins again, when, and that nothing of an epoch reaches the next.
#include "cohort/launcher/control/parts/restart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "cohort/launcher/control/roster.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobPlan RestartPlan(uint32_t nodes, uint32_t ranks_per_node, uint32_t max_restarts) {
  v1::JobPlan plan = MakePlan(nodes, ranks_per_node, "restart");
  plan.mutable_job()->set_max_restarts(max_restarts);
  return plan;
}

v1::JobReport FailedReport() {
  v1::JobReport report;
  report.set_exit_code(7);
  *report.add_exits() = Exited(0, 7);
  return report;
}

uint64_t EpochOf(const Driver& job, uint32_t node) {
  const v1::ToAgent* const message = job.Last(Driver::Of(node), v1::ToAgent::kAssignment);
  return message == nullptr ? 0 : message->assignment().epoch();
}

TEST(RestartPolicy, TheFirstRestartIsAtOnceAndFailuresInARowWaitLonger) {
  RestartPolicy policy(9);
  std::vector<int64_t> delays;
  for (int i = 0; i < 9; ++i) {
    const RestartPolicy::Decision decision = policy.Decide(FailedReport(), seconds(1));
    ASSERT_TRUE(decision.restart);
    delays.push_back(decision.delay.count());
  }
  EXPECT_EQ(delays, (std::vector<int64_t>{0, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000}));
  const RestartPolicy::Decision last = policy.Decide(FailedReport(), seconds(1));
  EXPECT_FALSE(last.restart);
  EXPECT_THAT(last.why_not, HasSubstr("9 times"));
}

TEST(RestartPolicy, AnEpochThatLastedMakesTheNextWaitShort) {
  RestartPolicy policy(9);
  for (int i = 0; i < 3; ++i) (void)policy.Decide(FailedReport(), seconds(1));
  EXPECT_EQ(policy.Decide(FailedReport(), minutes(5)).delay, milliseconds(0));
  EXPECT_EQ(policy.Decide(FailedReport(), seconds(1)).delay, milliseconds(0));
  EXPECT_EQ(policy.Decide(FailedReport(), seconds(1)).delay, seconds(1));
}

TEST(RestartPolicy, RestartsAreTriedOnlyWhereTheyMayHelp) {
  v1::JobReport success;
  EXPECT_FALSE(RestartPolicy(3).Decide(success, seconds(1)).restart);
  EXPECT_EQ(RestartPolicy(3).Decide(success, seconds(1)).why_not, "");
  EXPECT_EQ(RestartPolicy(0).Decide(FailedReport(), seconds(1)).why_not, "");
  v1::JobReport unstarted = FailedReport();
  unstarted.mutable_exits(0)->set_started(false);
  EXPECT_THAT(RestartPolicy(3).Decide(unstarted, seconds(1)).why_not, HasSubstr("could not be executed"));
  EXPECT_EQ(RestartPolicy(3).Decide(FailedReport(), seconds(1), "a node is lost").why_not, "a node is lost");
}

TEST(Restarting, TheSameRanksBeginAgainWhenAllAreGone) {
  Driver job(RestartPlan(2, 2, 1));
  job.JoinAll();
  EXPECT_EQ(EpochOf(job, 0), 1u);
  job.Exit(Killed(3, SIGKILL));
  job.Pass(milliseconds(200));
  EXPECT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  for (const uint32_t rank : {0u, 1u, 2u}) job.Exit(Killed(rank, SIGTERM, true));
  job.Done(0);
  EXPECT_TRUE(job.restarts().empty());
  EXPECT_EQ(EpochOf(job, 0), 1u);
  v1::FromAgent done;
  done.mutable_done()->set_node(1);
  job.Say(1, done);
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_EQ(job.restarts()[0].number(), 1u);
  EXPECT_EQ(job.restarts()[0].max_restarts(), 1u);
  EXPECT_EQ(job.restarts()[0].report().culprit_rank(), 3);
  EXPECT_EQ(job.restarts()[0].report().exit_code(), 137);
  job.Pass(milliseconds(10));
  for (const uint32_t node : {0u, 1u}) {
    EXPECT_EQ(EpochOf(job, node), 2u);
    const v1::ToAgent* const message = job.Last(Driver::Of(node), v1::ToAgent::kAssignment);
    EXPECT_EQ(message->assignment().placement().ranks(0).rank(), 2 * node);
  }
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(Exited(rank, 0));
  job.Done(0);
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 0);
  EXPECT_EQ(job.report()->exits_size(), 4);
}

// In the present epoch, unless another is given.
void Stays(Driver& job, uint32_t rank, std::optional<uint64_t> epoch = {}) {
  v1::FromAgent message;
  message.mutable_stays()->set_rank(rank);
  message.mutable_stays()->set_epoch(epoch.value_or(job.epoch()));
  job.Say(job.NodeOf(rank), message);
}

TEST(Restarting, RanksThatStayNeedNotEnd) {
  Driver job(RestartPlan(2, 2, 1));
  job.JoinAll();
  job.Exit(Killed(3, SIGKILL));
  Stays(job, 0);
  job.Pass(milliseconds(200));
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kStop), nullptr);
  EXPECT_TRUE(job.Last(Driver::Of(0), v1::ToAgent::kStop)->stop().restarting());
  Stays(job, 1);
  job.Done(0);
  job.Exit(Killed(2, SIGTERM, true));
  job.Done(1);
  ASSERT_EQ(job.restarts().size(), 1u);
  const v1::JobReport& report = job.restarts()[0].report();
  EXPECT_EQ(report.culprit_rank(), 3);
  EXPECT_THAT(report.others(0), HasSubstr("lives on and waits for the next epoch"));
  job.Pass(milliseconds(10));
  EXPECT_EQ(EpochOf(job, 0), 2u);
  // Nobody is said to stay in the second.
  job.Exit(Exited(0, 4));
  job.Pass(milliseconds(200));
  EXPECT_FALSE(job.Last(Driver::Of(0), v1::ToAgent::kStop)->stop().restarting()) << "there is no restart left";
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 4);
}

TEST(Restarting, AnEpochThatAllLeaveIsFollowedByAnother) {
  Driver job(RestartPlan(1, 2, 1));
  job.JoinAll();
  Stays(job, 0);
  Stays(job, 1);
  job.Done(0);
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_EQ(job.restarts()[0].report().headline(), "ranks 0 and 1 left the epoch to begin another; no rank had failed");
  job.Pass(milliseconds(10));
  EXPECT_EQ(EpochOf(job, 0), 2u);
}

TEST(Restarting, RanksThatWaitForAStayingRankAreToldAtOnce) {
  Driver job(RestartPlan(2, 1, 1));
  job.JoinAll();
  v1::FromAgent stalled;
  v1::StallReport& stall = *stalled.mutable_stall();
  stall.set_group(7);
  stall.set_epoch(1);
  stall.set_sequence(3);
  stall.mutable_members()->set_everyone(true);
  job.Say(0, stalled);
  const auto answer = [&job] {  // rank 0 waits in #3, rank 1 has never come to it
    for (const uint32_t node : {0u, 1u}) {
      const v1::ToAgent* const asked = job.Last(Driver::Of(node), v1::ToAgent::kInspect);
      ASSERT_NE(asked, nullptr);
      v1::FromAgent message;
      message.mutable_inspect()->set_request(asked->inspect().request());
      v1::CallState& call = *message.mutable_inspect()->add_calls();
      call.set_present(true);
      call.set_rank(node);
      call.set_group(7);
      call.set_epoch(1);
      call.set_sequence(node == 0 ? 3 : 2);
      call.set_call("all_reduce(sum, float32, 8)");
      call.set_signature(99);
      call.set_done(node != 0);
      call.set_sequence_seen(node == 0);
      job.Say(node, message);
    }
  };
  answer();
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kGroupFailure), nullptr);  // it may yet come
  job.Forget();
  Stays(job, 1);
  job.Pass(milliseconds(250));
  answer();
  const v1::ToAgent* const told = job.Last(Driver::Of(0), v1::ToAgent::kGroupFailure);
  ASSERT_NE(told, nullptr);
  EXPECT_EQ(told->group_failure().blamed_rank(), 1);
  EXPECT_THAT(told->group_failure().text(), HasSubstr("has left for the next epoch (Runtime::NextEpoch)"));
  Stays(job, 0);
  job.Done(0);
  job.Done(1);
  EXPECT_EQ(job.restarts().size(), 1u);
}

TEST(Restarting, OnlyItsOwnAgentMayReportThatARankStays) {
  Driver job(RestartPlan(2, 1, 1));
  job.JoinAll();
  v1::FromAgent message;
  message.mutable_stays()->set_rank(1);
  message.mutable_stays()->set_epoch(1);
  job.Say(0, message);
  EXPECT_TRUE(job.Closed(Driver::Of(0)));
}

TEST(Restarting, RanksThatStayedInAnotherEpochAreIgnored) {
  Driver job(RestartPlan(2, 1, 2));
  job.JoinAll();
  job.Exit(Exited(1, 5));
  Stays(job, 0);
  job.Done(0);
  job.Done(1);
  job.Pass(milliseconds(10));
  ASSERT_EQ(job.epoch(), 2u);
  for (const uint64_t other : {0u, 1u, 3u}) {
    Stays(job, 0, other);
    v1::FromAgent message;
    message.mutable_stays()->set_rank(1);  // ranks may have had other numbers then
    message.mutable_stays()->set_epoch(other);
    job.Say(0, message);
  }
  EXPECT_FALSE(job.Closed(Driver::Of(0)));
  // Nothing is known of rank 0, and so it is not said to wait.
  job.Exit(Exited(1, 6));
  job.Pass(milliseconds(200));
  job.Done(0);
  job.Done(1);
  ASSERT_EQ(job.restarts().size(), 2u);
  EXPECT_THAT(job.restarts()[1].report().others(), ElementsAre(HasSubstr("unknown")));
}

TEST(Restarting, TheLastFailureEndsTheJobAndSaysWhy) {
  Driver job(RestartPlan(1, 1, 1));
  job.JoinAll();
  job.Exit(Exited(0, 5));
  job.Done(0);
  job.Pass(milliseconds(10));
  EXPECT_EQ(EpochOf(job, 0), 2u);
  job.Exit(Exited(0, 6));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 6);
  EXPECT_THAT(job.report()->not_restarted(), HasSubstr("1 time"));
}

TEST(Restarting, TheKeyValueStoreIsEmptyAndThePortNew) {
  Driver job(RestartPlan(1, 1, 2));
  job.JoinAll();
  v1::FromAgent put;
  put.mutable_put()->set_request(1);
  put.mutable_put()->set_key("address/0");
  put.mutable_put()->set_value("of the first epoch");
  job.Say(0, put);
  v1::FromAgent get;
  get.mutable_get()->set_request(2);
  get.mutable_get()->set_key("never");
  get.mutable_get()->set_timeout_ms(500);
  job.Say(0, get);
  job.Exit(Exited(0, 5));
  v1::FromAgent done;
  done.mutable_done()->set_node(0);
  done.mutable_done()->set_master_port(12345);
  job.Say(0, done);
  job.Pass(milliseconds(10));
  ASSERT_EQ(EpochOf(job, 0), 2u);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kAssignment)->assignment().master_port(), 12345u);
  job.Forget();
  job.Pass(seconds(2));  // nobody waits for the old key any more
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kGet), nullptr);
  put.mutable_put()->set_value("of the second epoch");
  job.Say(0, put);
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kPut), nullptr);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kPut)->put().error(), "");
}

TEST(Restarting, TheUserMayEndTheJobWhileItPauses) {
  Driver job(RestartPlan(1, 1, 5));
  job.JoinAll();
  for (int i = 0; i < 2; ++i) {
    job.Exit(Exited(0, 5));
    job.Done(0);
    if (i == 0) job.Pass(milliseconds(10));
  }
  ASSERT_EQ(job.restarts().size(), 2u);
  EXPECT_EQ(job.restarts()[1].delay_ms(), 1000u);
  job.Pass(milliseconds(300));
  EXPECT_EQ(EpochOf(job, 0), 2u);
  job.Handle(StopRequested{"stopped by SIGINT", 130});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 130);
  job.Pass(seconds(5));
  EXPECT_EQ(EpochOf(job, 0), 2u);
  EXPECT_EQ(job.finishes(), 1);
}

TEST(Restarting, AStoppedJobIsNotRestarted) {
  Driver job(RestartPlan(2, 1, 5));
  job.JoinAll();
  job.Handle(StopRequested{"stopped by SIGTERM", 143});
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 143);
  EXPECT_EQ(job.report()->not_restarted(), "");
  EXPECT_TRUE(job.restarts().empty());
}

TEST(Restarting, ALostNodeEndsTheJobWheneverItIsLost) {
  Driver running(RestartPlan(2, 1, 5));
  running.JoinAll();
  running.Handle(Disconnected{Driver::Of(1), "its connection broke"});
  running.Pass(milliseconds(200), {0});
  running.Exit(Killed(0, SIGTERM, true));
  running.Done(0);
  ASSERT_TRUE(running.report().has_value());
  EXPECT_THAT(running.report()->headline(), HasSubstr("the agent of node1 is gone"));
  EXPECT_THAT(running.report()->not_restarted(), HasSubstr("a node is lost"));

  Driver pausing(RestartPlan(2, 1, 5));
  pausing.JoinAll();
  for (int i = 0; i < 2; ++i) {
    pausing.Exit(Exited(0, 5));
    pausing.Pass(milliseconds(200));
    pausing.Exit(Killed(1, SIGTERM, true));
    pausing.Done(0);
    pausing.Done(1);
    if (i == 0) pausing.Pass(milliseconds(10));
  }
  ASSERT_EQ(pausing.restarts().size(), 2u);
  pausing.Handle(Disconnected{Driver::Of(1), "its connection broke"});
  ASSERT_TRUE(pausing.report().has_value());
  EXPECT_THAT(pausing.report()->headline(), HasSubstr("node1 is gone"));
  EXPECT_NE(pausing.report()->exit_code(), 0);
}

TEST(Restarting, LateAnswersAreIgnored) {
  Driver job(RestartPlan(1, 2, 5));
  job.JoinAll();
  v1::FromAgent stall;
  stall.mutable_stall()->set_group(1);
  stall.mutable_stall()->set_epoch(1);
  stall.mutable_stall()->set_sequence(4);
  stall.mutable_stall()->mutable_members()->set_everyone(true);
  job.Say(0, stall);
  const v1::ToAgent* const asked = job.Last(Driver::Of(0), v1::ToAgent::kInspect);
  ASSERT_NE(asked, nullptr);
  v1::FromAgent late;
  late.mutable_inspect()->set_request(asked->inspect().request());
  for (const uint32_t rank : {0u, 1u}) job.Exit(Exited(rank, 5));
  job.Done(0);
  job.Pass(milliseconds(10));
  ASSERT_EQ(EpochOf(job, 0), 2u);
  job.Say(0, stall);  // of the new epoch: the same group and number
  const v1::ToAgent* const again = job.Last(Driver::Of(0), v1::ToAgent::kInspect);
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again->inspect().request(), late.inspect().request());
  job.Say(0, late);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kGroupFailure), nullptr);
}

// Ranks and nodes fail, agents say what they like, time passes: the job always ends, restarts stay within their limit,
// epochs count up, and no epoch begins before every node has said that the one before is over.
TEST(Restarting, JobsEndWithinTheirRestartsWhateverFails) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const uint32_t nodes = 1 + below(3), per_node = 1 + below(3), limit = 1 + below(3);
    Driver job(RestartPlan(nodes, per_node, limit));
    job.JoinAll();
    uint64_t epoch = 1;
    for (int rounds = 0; rounds < 10 && !job.report().has_value(); ++rounds) {
      const uint32_t victim = below(nodes * per_node);
      const uint32_t how = below(8);
      if (how == 0) job.Handle(StopRequested{"stopped by SIGINT", 130});
      if (how == 1 && nodes > 1) job.Handle(Disconnected{Driver::Of(1), "gone"});
      if (how > 1) job.Exit(how < 5 ? Killed(victim, SIGKILL) : Exited(victim, 1 + static_cast<int>(below(100))));
      job.Pass(milliseconds(below(400)));
      for (uint32_t node = 0; node < nodes && !job.report().has_value(); ++node) {
        for (uint32_t i = 0; i < per_node; ++i) job.Exit(Killed(node * per_node + i, SIGTERM, true));
        EXPECT_EQ(EpochOf(job, 0), epoch);
        job.Done(node);
      }
      job.Pass(milliseconds(below(2) == 0 ? 5 : 40'000));
      if (job.report().has_value()) break;
      ASSERT_EQ(job.restarts().size(), epoch);
      job.Pass(milliseconds(40'000));
      ASSERT_EQ(EpochOf(job, 0), ++epoch);
    }
    ASSERT_TRUE(job.report().has_value());
    EXPECT_EQ(job.finishes(), 1);
    EXPECT_LE(job.restarts().size(), limit);
    EXPECT_NE(job.report()->exit_code(), 0);
  }
}

}  // namespace
}  // namespace cohort::launcher
