#include "cohort/launcher/control/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "cohort/launcher/control/roster.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Joining, RanksAreAssignedWhenEveryNodeIsThere) {
  Driver job(3, 2);
  v1::NodeOffer first = MakeOffer(0);
  first.set_master_port(29500);
  job.Join(2);
  job.JoinAs(Driver::Of(0), first);
  EXPECT_EQ(job.Last(Driver::Of(0), v1::ToAgent::kAssignment), nullptr);
  job.Join(1);
  for (uint32_t node = 0; node < 3; ++node) {
    const v1::ToAgent* message = job.Last(Driver::Of(node), v1::ToAgent::kAssignment);
    ASSERT_NE(message, nullptr);
    const v1::Assignment& assignment = message->assignment();
    EXPECT_EQ(assignment.epoch(), 1u);
    EXPECT_EQ(assignment.world_size(), 6u);
    EXPECT_EQ(assignment.placement().node(), node);
    EXPECT_EQ(assignment.master_address(), "10.0.0.1");
    EXPECT_EQ(assignment.master_port(), 29500u);
    const v1::ToAgent* table = job.Last(Driver::Of(node), v1::ToAgent::kNodes);
    ASSERT_NE(table, nullptr);
    ASSERT_EQ(table->nodes().nodes_size(), 3);
    EXPECT_EQ(table->nodes().nodes(1).name(), "node1");
    EXPECT_EQ(table->nodes().nodes(1).first_rank(), 2u);
    EXPECT_EQ(table->nodes().nodes(1).rank_count(), 2u);
  }
}

TEST(Joining, AnotherProtocolIsRefusedAndBothAreNamed) {
  Driver job(1, 1);
  v1::NodeOffer offer = MakeOffer(0);
  offer.set_protocol(7);
  job.JoinAs(9, offer);
  ASSERT_NE(job.Last(9, v1::ToAgent::kRefused), nullptr);
  const std::string why = job.Last(9, v1::ToAgent::kRefused)->refused();
  EXPECT_THAT(why, HasSubstr("version 7 of the rendezvous protocol, this job's rendezvous speaks version 2"));
  EXPECT_TRUE(job.Closed(9));
}

TEST(Joining, UnknownNodesDuplicatesAndLatecomersAreRefused) {
  Driver job(2, 1);
  job.JoinAs(8, MakeOffer(2));
  EXPECT_THAT(job.Last(8, v1::ToAgent::kRefused)->refused(), HasSubstr("node 2 does not belong to this job"));
  job.Join(0);
  v1::NodeOffer twin = MakeOffer(0);
  twin.set_address("10.0.0.99");
  job.JoinAs(9, twin);
  EXPECT_THAT(job.Last(9, v1::ToAgent::kRefused)->refused(), HasSubstr("10.0.0.1"));
  EXPECT_THAT(job.Last(9, v1::ToAgent::kRefused)->refused(), HasSubstr("10.0.0.99"));
  job.Join(1);
  job.JoinAs(10, MakeOffer(1));
  EXPECT_NE(job.Last(10, v1::ToAgent::kRefused), nullptr);
  EXPECT_FALSE(job.report().has_value());  // nobody was disturbed
  EXPECT_NE(job.Last(Driver::Of(1), v1::ToAgent::kAssignment), nullptr);
}

TEST(Joining, TheTimeoutNamesTheMissingNodes) {
  Driver job(3, 1);
  job.Join(1);
  v1::NodeOffer wrong = MakeOffer(2);
  wrong.set_protocol(9);
  job.JoinAs(Driver::Of(2), wrong);
  job.Pass(seconds(59), {1});
  EXPECT_FALSE(job.report().has_value());
  job.Pass(seconds(2), {1});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->headline(), HasSubstr("missing: node0, node2 (was refused: "));
  EXPECT_THAT(job.report()->headline(), Not(HasSubstr("node1")));
  EXPECT_NE(job.report()->exit_code(), 0);
  EXPECT_NE(job.Last(Driver::Of(1), v1::ToAgent::kReport), nullptr);
  EXPECT_TRUE(job.Closed(Driver::Of(1)));
}

TEST(Joining, AnAgentLostBeforeTheStartEndsTheJob) {
  Driver job(2, 1);
  job.Join(1);
  job.Handle(Disconnected{Driver::Of(1), "its connection broke"});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->headline(), HasSubstr("the agent of node1 is gone: its connection broke"));
}

TEST(Joining, TheFirstMessageMustBeAnOffer) {
  Driver job(1, 1);
  v1::FromAgent beat;
  beat.mutable_beat();
  job.Handle(Received{5, beat});
  EXPECT_NE(job.Last(5, v1::ToAgent::kRefused), nullptr);
  EXPECT_TRUE(job.Closed(5));
}

TEST(Ending, TheJobSucceedsWhenAllRanksEndWell) {
  Driver job(2, 2);
  job.JoinAll();
  for (uint32_t rank = 0; rank < 4; ++rank) job.Exit(Exited(rank, 0));  // without goodbye: an ordinary program
  job.Done(0);
  EXPECT_FALSE(job.report().has_value());
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 0);
  EXPECT_EQ(job.report()->headline(), "");
  EXPECT_EQ(job.report()->culprit_rank(), -1);
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 0);
  EXPECT_TRUE(job.rendezvous().finished());
}

TEST(Ending, AKilledRankEndsTheJobAndIsNamed) {
  Driver job(2, 2);
  job.JoinAll();
  v1::RankExit exit = Killed(3, SIGKILL);
  exit.add_last_lines("step 41 loss 0.31");
  job.Exit(exit);
  for (uint32_t node = 0; node < 2; ++node) {
    const v1::ToAgent* lost = job.Last(Driver::Of(node), v1::ToAgent::kRanksLost);
    ASSERT_NE(lost, nullptr);
    EXPECT_EQ(lost->ranks_lost().text(), "rank 3 (node1, pid 1003) killed by SIGKILL");
    EXPECT_THAT(lost->ranks_lost().ranks(), ::testing::ElementsAre(3u));
  }
  job.Pass(milliseconds(200));
  EXPECT_THAT(job.losses(), ::testing::ElementsAre("rank 3 (node1, pid 1003) killed by SIGKILL"));  // dlaunch, once
  const v1::ToAgent* stop = job.Last(Driver::Of(0), v1::ToAgent::kStop);
  ASSERT_NE(stop, nullptr);
  EXPECT_EQ(stop->stop().grace_ms(), 2000u);
  EXPECT_EQ(stop->stop().exit_code(), 137);
  for (uint32_t rank : {0u, 1u, 2u}) {
    v1::RankExit other = Killed(rank, SIGTERM, true);
    other.mutable_doing()->set_present(true);
    other.mutable_doing()->set_call("all_reduce(sum, float32, 8)");
    other.mutable_doing()->set_sequence(42);
    other.mutable_doing()->set_site("train.cc:88");
    other.mutable_doing()->set_age_ms(120);
    job.Exit(other);
  }
  job.Done(0);
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 137);
  EXPECT_EQ(job.report()->culprit_rank(), 3);
  EXPECT_EQ(job.report()->headline(), "rank 3 (node1, pid 1003) killed by SIGKILL");
  EXPECT_THAT(job.report()->last_lines(), ::testing::ElementsAre("step 41 loss 0.31"));
  EXPECT_THAT(job.report()->others(),
              ::testing::ElementsAre("rank 0 (node0): in all_reduce #42 at train.cc:88 for 120 ms",
                                     "rank 1 (node0): in all_reduce #42 at train.cc:88 for 120 ms",
                                     "rank 2 (node1): in all_reduce #42 at train.cc:88 for 120 ms"));
}

TEST(Ending, GroupsAreNamedWhereCallsOfSeveralAreReported) {
  Driver job(1, 3);
  job.JoinAll();
  job.Exit(Killed(2, SIGSEGV));
  job.Pass(milliseconds(200));
  for (uint32_t rank : {0u, 1u}) {
    v1::RankExit other = Killed(rank, SIGTERM, true);
    other.mutable_doing()->set_present(true);
    other.mutable_doing()->set_call("all_reduce(sum, float32, 8)");
    other.mutable_doing()->set_group(0xa0 + rank);
    other.mutable_doing()->set_sequence(108 + rank);
    other.mutable_doing()->set_age_ms(120);
    job.Exit(other);
  }
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->others(),
              ::testing::ElementsAre("rank 0 (node0): in all_reduce #108 of group 00000000000000a0 for 120 ms",
                                     "rank 1 (node0): in all_reduce #109 of group 00000000000000a1 for 120 ms"));
}

TEST(Ending, TheReportSaysHowEachRankWasKilled) {
  Driver job(2, 2);
  job.JoinAll();
  job.Exit(Killed(3, SIGSEGV));
  job.Pass(milliseconds(200));
  v1::RankExit asked = Killed(0, SIGKILL, true);
  asked.set_asked_to_end(true);
  job.Exit(asked);
  job.Exit(Killed(1, SIGKILL, true));  // a rank that leaves its epoch for the next one is not asked
  v1::RankExit frozen = Killed(2, SIGKILL, true);
  frozen.set_error("it stayed stopped (SIGSTOP)");
  job.Exit(frozen);
  job.Done(0);
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->culprit_rank(), 3);
  const std::string outside = ": in no call of Cohort, which it has not joined, ";
  EXPECT_THAT(job.report()->others(),
              ::testing::ElementsAre("rank 0 (node0)" + outside + "did not end when asked and was killed",
                                     "rank 1 (node0)" + outside + "was killed without being asked",
                                     "rank 2 (node1)" + outside + "killed by its agent: it stayed stopped (SIGSTOP)"));
}

TEST(Ending, TheOtherRanksGoOnWithContinue) {
  Driver job(2, 2, "continue");
  job.JoinAll();
  job.Exit(Exited(1, 3));
  job.Pass(seconds(30));
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kRanksLost), 1);
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kStop), 0);
  for (uint32_t rank : {0u, 2u, 3u}) job.Exit(Exited(rank, 0));
  job.Done(0);
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 3);
  EXPECT_EQ(job.report()->culprit_rank(), 1);
}

TEST(Ending, AProgramThatIsNotFoundIsNamedOnce) {
  Driver job(2, 2);
  job.JoinAll();
  for (uint32_t node = 0; node < 2; ++node) {
    v1::FromAgent message;
    for (uint32_t i = 0; i < 2; ++i) {
      v1::RankExit& failed = *message.mutable_started()->add_failed();
      failed.set_rank(2 * node + i);
      failed.set_error("main: no such file");
    }
    job.Say(node, message);
    job.Done(node);
  }
  job.Pass(seconds(1));
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->headline(), "ranks 0-3 could not be started: main: no such file");
  EXPECT_EQ(job.report()->others_size(), 0);  // all are told of
  EXPECT_EQ(job.report()->exit_code(), 127);
}

TEST(Ending, AStopRequestEndsTheJobWithItsCode) {
  Driver job(2, 1);
  job.JoinAll();
  job.Handle(StopRequested{"stopped by SIGINT", 130});
  job.Handle(StopRequested{"stopped by SIGTERM", 143});
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kStop), 1);
  job.Exit(Exited(0, 1));  // its own way to end on SIGTERM
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 130);
  EXPECT_EQ(job.report()->headline(), "stopped by SIGINT");
  EXPECT_EQ(job.report()->culprit_rank(), -1);
}

TEST(Ending, AStopBeforeTheStartIsAtOnce) {
  Driver job(2, 1);
  job.Join(0);
  v1::FromAgent message;
  message.mutable_stop()->set_reason("stopped by SIGTERM");
  message.mutable_stop()->set_exit_code(143);
  job.Say(0, message);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 143);
}

TEST(Ending, AgentsThatDoNotReportAreNotWaitedForForever) {
  Driver job(2, 1);
  job.JoinAll();
  job.Exit(Exited(0, 1));
  job.Done(0);
  job.Pass(seconds(10));
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->culprit_rank(), 0);
  ASSERT_EQ(job.report()->others_size(), 1);
  EXPECT_THAT(job.report()->others(0), HasSubstr("it did not say in time that its ranks were gone"));
}

TEST(Ending, ARankEndedByItsAgentWithoutReasonIsNoSuccess) {
  Driver job(1, 2);
  job.JoinAll();
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_NE(job.report()->exit_code(), 0);
  EXPECT_NE(job.report()->headline(), "");
}

TEST(Ending, AFrozenRankThatItsAgentKilledIsTheCause) {
  Driver job(1, 2);
  job.JoinAll();
  v1::RankExit frozen = Killed(1, SIGKILL, true);
  frozen.set_error("it was frozen for 3.5 s");
  job.Exit(frozen);
  job.Pass(milliseconds(200));
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->culprit_rank(), 1);
  EXPECT_THAT(job.report()->headline(), HasSubstr("killed by its agent: it was frozen for 3.5 s"));
}

TEST(Ending, ARankThatFailedAndExitedWithZeroIsNoSuccess) {
  Driver job(1, 2);
  job.JoinAll();
  v1::RankExit frozen = Exited(1, 0);  // the agent's signal came as it ended
  frozen.set_killed_by_us(true);
  frozen.set_error("it stayed stopped (SIGSTOP)");
  job.Exit(frozen);
  job.Pass(milliseconds(200));
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 1);
  EXPECT_EQ(job.report()->culprit_rank(), 1);
}

TEST(Peers, AnEndThatNoProcessHasEndsTheConnection) {
  using End = std::pair<int, int>;
  for (const auto& [code, signal] : {End(256, 0), End(-1, 0), End(0, 65), End(0, -9), End(0, 2147483647)}) {
    Driver job(2, 1);
    job.JoinAll();
    v1::RankExit exit = Exited(1, code);
    exit.set_signal(signal);
    job.Exit(exit);
    EXPECT_TRUE(job.Closed(Driver::Of(1))) << code << " " << signal;
    EXPECT_FALSE(job.Closed(Driver::Of(0)));
  }
}

TEST(Liveness, EveryBeatIsAnsweredAtOnce) {
  Driver job(2, 1);
  for (const bool running : {false, true}) {
    job.Join(running ? 0 : 1);
    for (const uint64_t number : {1u, 2u}) {
      v1::FromAgent beat;
      beat.mutable_beat()->set_number(10 * (running ? 1 : 0) + number);
      job.Say(1, beat);
      ASSERT_NE(job.Last(Driver::Of(1), v1::ToAgent::kBeat), nullptr);
      EXPECT_EQ(job.Last(Driver::Of(1), v1::ToAgent::kBeat)->beat().number(), beat.beat().number());
    }
  }
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kBeat), 4);
}

TEST(Liveness, ASilentNodeIsLostWithItsRanks) {
  Driver job(2, 2);
  job.JoinAll();
  job.Pass(milliseconds(3400), {0});
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 0);
  job.Pass(milliseconds(500), {0});
  const v1::ToAgent* lost = job.Last(Driver::Of(0), v1::ToAgent::kRanksLost);
  ASSERT_NE(lost, nullptr);
  EXPECT_THAT(lost->ranks_lost().text(), HasSubstr("ranks 2 and 3 (node1) lost: the agent of node1 is gone"));
  EXPECT_TRUE(job.Closed(Driver::Of(1)));
  job.Exit(Killed(0, SIGTERM, true));
  job.Exit(Killed(1, SIGTERM, true));
  job.Done(0);
  job.Pass(seconds(1), {0});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->culprit_rank(), 2);
  EXPECT_THAT(job.report()->headline(), HasSubstr("it was silent for 3.4 s"));
  ASSERT_EQ(job.report()->others_size(), 2);  // rank 3 is in the headline
  EXPECT_THAT(job.report()->others(1), StartsWith("rank 1 (node0)"));
  EXPECT_NE(job.report()->exit_code(), 0);
}

TEST(Liveness, ANodeThatIsGivenUpIsToldSo) {
  Driver job(3, 1);
  job.JoinAll();
  job.Pass(seconds(5), {0, 1});
  ASSERT_NE(job.Last(Driver::Of(2), v1::ToAgent::kRefused), nullptr);
  EXPECT_THAT(job.Last(Driver::Of(2), v1::ToAgent::kRefused)->refused(), HasSubstr("silent for 3.4 s"));
  EXPECT_TRUE(job.Closed(Driver::Of(2)));
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kRefused), 0);
}

TEST(Liveness, NoNodeIsBlamedForAStopOfTheRendezvous) {
  Driver job(2, 1);
  job.JoinAll();
  job.Pass(seconds(2));
  job.Freeze(seconds(60));
  job.Tick();
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 0);
  job.Pass(seconds(5));
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 0);
  job.Pass(seconds(5), {0});  // who stays silent afterwards is still found
  EXPECT_EQ(job.Count(Driver::Of(0), v1::ToAgent::kRanksLost), 1);
}

TEST(Liveness, ALostAgentWhoseRanksHadEndedIsNoFailure) {
  Driver job(2, 1);
  job.JoinAll();
  job.Exit(Exited(1, 0));
  job.Done(1);
  job.Handle(Disconnected{Driver::Of(1), ""});
  job.Exit(Exited(0, 0));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_EQ(job.report()->exit_code(), 0);
}

TEST(Peers, AnAgentMaySpeakOnlyForItsOwnRanks) {
  Driver job(2, 1);
  job.JoinAll();
  v1::FromAgent message;
  *message.mutable_exit() = Killed(1, SIGKILL);
  job.Say(0, message);
  ASSERT_NE(job.Last(Driver::Of(0), v1::ToAgent::kRefused), nullptr);
  EXPECT_THAT(job.Last(Driver::Of(0), v1::ToAgent::kRefused)->refused(), HasSubstr("rank 1"));
  EXPECT_TRUE(job.Closed(Driver::Of(0)));
  const v1::ToAgent* lost = job.Last(Driver::Of(1), v1::ToAgent::kRanksLost);
  ASSERT_NE(lost, nullptr);
  EXPECT_THAT(lost->ranks_lost().ranks(), ::testing::ElementsAre(0u));
}

TEST(Peers, UnknownKindsOfMessagesAreIgnored) {
  Driver job(1, 1);
  job.JoinAll();
  job.Say(0, v1::FromAgent());
  EXPECT_FALSE(job.Closed(Driver::Of(0)));
}

TEST(Store, TheStoreAnswersAtOnceLaterOrNever) {
  Driver job(2, 1);
  job.JoinAll();
  const auto get = [&job](uint64_t request, const std::string& key, uint32_t timeout_ms) {
    v1::FromAgent message;
    message.mutable_get()->set_request(request);
    message.mutable_get()->set_key(key);
    message.mutable_get()->set_timeout_ms(timeout_ms);
    job.Say(1, message);
  };
  const auto put = [&job](const std::string& key, const std::string& value) {
    v1::FromAgent message;
    message.mutable_put()->set_request(1);
    message.mutable_put()->set_key(key);
    message.mutable_put()->set_value(value);
    job.Say(0, message);
    return job.Last(Driver::Of(0), v1::ToAgent::kPut)->put().error();
  };
  get(10, "a", 5000);
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kGet), 0);
  EXPECT_EQ(put("a", "x"), "");
  ASSERT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kGet), 1);
  EXPECT_EQ(job.Last(Driver::Of(1), v1::ToAgent::kGet)->get().request(), 10u);
  EXPECT_EQ(job.Last(Driver::Of(1), v1::ToAgent::kGet)->get().value(), "x");
  EXPECT_EQ(put("a", "x"), "");  // the same again
  EXPECT_THAT(put("a", "y"), HasSubstr("written once"));
  get(11, "b", 700);
  job.Pass(milliseconds(600));
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kGet), 1);
  job.Pass(milliseconds(200));
  ASSERT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kGet), 2);
  EXPECT_EQ(job.Last(Driver::Of(1), v1::ToAgent::kGet)->get().request(), 11u);
  EXPECT_FALSE(job.Last(Driver::Of(1), v1::ToAgent::kGet)->get().found());
  get(12, "b", 0);
  EXPECT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kGet), 3);
}

TEST(Ending, AnEndedJobHasNoTimersDue) {
  Driver job(2, 1);
  job.JoinAll();
  v1::FromAgent get;
  get.mutable_get()->set_request(1);
  get.mutable_get()->set_key("nobody puts it");
  get.mutable_get()->set_timeout_ms(2000);
  job.Say(0, get);
  v1::FromAgent stall;
  stall.mutable_stall()->set_group(1);
  stall.mutable_stall()->set_epoch(1);
  stall.mutable_stall()->set_sequence(1);
  stall.mutable_stall()->mutable_members()->add_ranks(0);
  stall.mutable_stall()->mutable_members()->add_ranks(1);
  job.Say(0, stall);
  ASSERT_EQ(job.Count(Driver::Of(1), v1::ToAgent::kInspect), 1);
  job.Handle(StopRequested{"stopped by SIGINT", 130});
  job.EndAllAsTold();
  ASSERT_TRUE(job.report().has_value());
  for (int i = 0; i < 10; ++i) {
    const auto left = std::chrono::ceil<milliseconds>(job.rendezvous().NextTick() - job.now());
    job.Freeze(left + milliseconds(1));
    job.Tick();
  }
  EXPECT_GT(job.rendezvous().NextTick() - job.now(), seconds(60));
}

TEST(Plan, APlanIsCheckedBeforeItIsUsed) {
  EXPECT_TRUE(CheckPlan(MakePlan(3, 2)).ok());
  EXPECT_FALSE(CheckPlan(v1::JobPlan()).ok());
  EXPECT_FALSE(CheckPlan(MakePlan(2, 0)).ok());
  EXPECT_FALSE(CheckPlan(MakePlan(1, 1, "panic")).ok());
  v1::JobPlan plan = MakePlan(2, 2);
  plan.mutable_placements(1)->mutable_ranks(0)->set_rank(7);
  EXPECT_THAT(std::string(CheckPlan(plan).message()), HasSubstr("7 in place of 2 on node1"));
  plan = MakePlan(2, 2);
  plan.mutable_placements()->SwapElements(0, 1);
  EXPECT_FALSE(CheckPlan(plan).ok());
}

}  // namespace
}  // namespace cohort::launcher
