// Nodes that are lost: who takes their place, when, and what the job does with fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/roster.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobPlan PlanWithSpares(uint32_t nodes, uint32_t ranks_per_node, uint32_t spares, uint32_t min_nodes = 0) {
  v1::JobPlan plan = MakePlan(nodes, ranks_per_node, "restart");
  plan.mutable_job()->set_max_restarts(5);
  plan.set_min_nodes(min_nodes);
  for (uint32_t i = 0; i < spares; ++i) {
    v1::SpareNode& spare = *plan.add_spares();
    spare.set_name("node" + std::to_string(nodes + i));
    *spare.add_placements() = plan.placements(0);
    for (v1::RankPlacement& rank : *spare.mutable_placements(0)->mutable_ranks()) rank.set_cpus("7");
  }
  return plan;
}

const v1::Assignment& AssignmentOf(const Driver& job, uint32_t agent) {
  static const v1::Assignment kNone;
  const v1::ToAgent* const message = job.Last(Driver::Of(agent), v1::ToAgent::kAssignment);
  return message == nullptr ? kNone : message->assignment();
}

std::vector<uint32_t> RanksOf(const Driver& job, uint32_t agent) {
  std::vector<uint32_t> ranks;
  for (const v1::RankPlacement& rank : AssignmentOf(job, agent).placement().ranks()) ranks.push_back(rank.rank());
  return ranks;
}

// Three nodes of two ranks, `spares` idle ones; node 1 is gone and the others have ended.
void LoseNode1(Driver* job) {
  job->Handle(Disconnected{Driver::Of(1), "its connection broke"});
  job->Pass(milliseconds(200), {0, 2});
  for (const uint32_t rank : {0u, 1u, 4u, 5u}) job->Exit(Killed(rank, SIGTERM, true));
  job->Done(0);
  job->Done(2);
}

TEST(Spares, ASpareTakesTheRanksOfALostNodeWhenItsLeaseIsOver) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 1u);
  EXPECT_TRUE(RanksOf(job, 3).empty());
  LoseNode1(&job);
  EXPECT_THAT(job.lost(), ElementsAre(1));
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_GT(job.restarts()[0].delay_ms(), 3500u);
  job.Pass(kSilenceTimeout + kKillTime - milliseconds(300), {0, 2, 3});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 1u);
  job.Pass(milliseconds(400), {0, 2, 3});
  for (const uint32_t agent : {0u, 2u, 3u}) EXPECT_EQ(AssignmentOf(job, agent).epoch(), 2u);
  EXPECT_THAT(RanksOf(job, 0), ElementsAre(0, 1));
  EXPECT_THAT(RanksOf(job, 2), ElementsAre(4, 5));
  EXPECT_THAT(RanksOf(job, 3), ElementsAre(2, 3));
  EXPECT_EQ(AssignmentOf(job, 3).placement().node(), 1u);
  EXPECT_EQ(AssignmentOf(job, 3).placement().ranks(0).cpus(), "7");
  ASSERT_EQ(job.members().size(), 1u);
  EXPECT_THAT(job.members()[0].changes(0), HasSubstr("node3 takes the place of node1: ranks 2 and 3"));
  EXPECT_THAT(job.members()[0].agents(), ElementsAre(0, 3, 2));
}

// Begins the second epoch after a failed rank; nobody is lost.
void FailOneAndGoOn(Driver* job) {
  job->JoinAll();
  job->Exit(Exited(0, 1));
  job->Pass(milliseconds(200));
  job->EndAllAsTold();
  job->Pass(milliseconds(200));
}

// A table of thousands of nodes for each of thousands of agents is most of what a restart sends.
TEST(NodeTables, NodeTablesAreSentOnlyWhereNodesAreNew) {
  Driver same(PlanWithSpares(3, 2, 0));
  FailOneAndGoOn(&same);
  for (const uint32_t agent : {0u, 1u, 2u}) {
    EXPECT_EQ(AssignmentOf(same, agent).epoch(), 2u);
    EXPECT_TRUE(AssignmentOf(same, agent).same_nodes());
    EXPECT_EQ(same.All(Driver::Of(agent), v1::ToAgent::kNodes).size(), 1u);
  }
  Driver other(PlanWithSpares(3, 2, 1));
  other.JoinAll();
  other.Join(3);
  LoseNode1(&other);
  other.Handle(AgentEnded{1});
  other.Pass(milliseconds(10), {0, 2, 3});
  for (const uint32_t agent : {0u, 2u, 3u}) {
    EXPECT_FALSE(AssignmentOf(other, agent).same_nodes());
    EXPECT_EQ(other.All(Driver::Of(agent), v1::ToAgent::kNodes).size(), agent == 3 ? 1u : 2u);
  }
}

// An agent that comes to another host of the rendezvous may lack it.
TEST(NodeTables, NodeTablesAreSentAgainWhereThereAreStandbys) {
  v1::JobPlan plan = PlanWithSpares(3, 2, 0);
  plan.set_standbys(1);
  Driver job(std::move(plan));
  FailOneAndGoOn(&job);
  EXPECT_EQ(AssignmentOf(job, 1).epoch(), 2u);
  EXPECT_FALSE(AssignmentOf(job, 1).same_nodes());
  EXPECT_EQ(job.All(Driver::Of(1), v1::ToAgent::kNodes).size(), 2u);
}

TEST(Spares, ASpareDoesNotWaitForANodeWhoseEndIsKnown) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  LoseNode1(&job);
  job.Handle(AgentEnded{1});
  job.Pass(milliseconds(10), {0, 2, 3});
  EXPECT_THAT(RanksOf(job, 3), ElementsAre(2, 3));
}

TEST(Spares, ASpareWaitsNoLongerWhereTheRendezvousIsStoppedNowAndThen) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  LoseNode1(&job);
  for (int i = 0; i < 3; ++i) {
    job.Pass(milliseconds(1000), {0, 2, 3});
    job.Freeze(seconds(2));
    job.Tick();
  }
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 1u);
  job.Pass(milliseconds(1500), {0, 2, 3});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 2u);
}

TEST(Spares, ASpareTakesThePlaceOfANodeThatDoesNotConfirmItsEnd) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  job.Exit(Killed(0, SIGSEGV));
  job.Pass(milliseconds(200));
  for (const uint32_t rank : {1u, 4u, 5u}) job.Exit(Killed(rank, SIGTERM, true));
  job.Done(0);
  job.Done(2);
  job.Pass(seconds(6), {0, 1, 2, 3});  // it lives: the grace and five seconds are its time
  EXPECT_THAT(job.lost(), ElementsAre());
  job.Pass(seconds(2), {0, 2, 3});
  EXPECT_THAT(job.lost(), ElementsAre(1));
  EXPECT_TRUE(job.Closed(Driver::Of(1)));
  ASSERT_NE(job.Last(Driver::Of(1), v1::ToAgent::kRefused), nullptr);
  EXPECT_THAT(job.Last(Driver::Of(1), v1::ToAgent::kRefused)->refused(), HasSubstr("did not say in time"));
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_EQ(job.restarts()[0].report().culprit_rank(), 0);
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 1u);  // it still has its lease
  job.Pass(kSilenceTimeout + kKillTime, {0, 2, 3});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 2u);
  EXPECT_THAT(RanksOf(job, 3), ElementsAre(2, 3));
}

TEST(Spares, TheRestartWaitsForASpareThatHasYetToJoin) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  LoseNode1(&job);
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_EQ(job.restarts()[0].spares(), 1u);
  job.Pass(seconds(20), {0, 2});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 1u);
  job.Join(3);
  job.Pass(milliseconds(300), {0, 2, 3});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 2u);
  EXPECT_THAT(RanksOf(job, 3), ElementsAre(2, 3));
}

TEST(Spares, TheRestartWaitsForASpareNoLongerThanForANode) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  LoseNode1(&job);
  job.Pass(seconds(59), {0, 2});
  EXPECT_FALSE(job.report().has_value());
  job.Pass(seconds(2), {0, 2});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->headline(), HasSubstr("not every spare node has joined in time"));
  EXPECT_THAT(job.report()->headline(), HasSubstr("there is no spare left"));
}

TEST(Spares, TheRestartDoesNotWaitForASpareThatHasEnded) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  LoseNode1(&job);
  job.Handle(AgentEnded{3, "the agent of node3 has ended", 1});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->headline(), HasSubstr("the agent of node3 has ended, before the job was started again"));
}

TEST(Spares, TheRestartDoesNotWaitForASpareWhereTheJobCanShrink) {
  Driver job(PlanWithSpares(3, 2, 1, 2));
  job.JoinAll();
  LoseNode1(&job);
  ASSERT_EQ(job.restarts().size(), 1u);
  EXPECT_EQ(job.restarts()[0].spares(), 0u);
  job.Pass(kSilenceTimeout + kKillTime, {0, 2});
  EXPECT_EQ(AssignmentOf(job, 0).epoch(), 2u);
}

TEST(Spares, ALostSpareTakesNobodysPlace) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  job.Handle(Disconnected{Driver::Of(3), "its connection broke"});
  EXPECT_THAT(job.lost(), ElementsAre(3));
  EXPECT_FALSE(job.report().has_value());  // the job needs none yet
  LoseNode1(&job);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->not_restarted(), HasSubstr("there is no spare left"));
}

TEST(Spares, IdleSparesAreToldOfTheEnd) {
  Driver job(PlanWithSpares(1, 1, 1));
  job.JoinAll();
  job.JoinAs(Driver::Of(1), MakeOffer(1));
  job.Exit(Exited(0, 0));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_NE(job.Last(Driver::Of(1), v1::ToAgent::kReport), nullptr);
  EXPECT_TRUE(job.Closed(Driver::Of(1)));
}

TEST(Spares, ANodeThatASpareReplacedDoesNotComeBack) {
  Driver job(PlanWithSpares(3, 2, 1));
  job.JoinAll();
  job.Join(3);
  LoseNode1(&job);
  job.JoinAs(99, MakeOffer(1));
  EXPECT_NE(job.Last(99, v1::ToAgent::kRefused), nullptr);
  job.JoinAs(98, MakeOffer(3));
  EXPECT_THAT(job.Last(98, v1::ToAgent::kRefused)->refused(), HasSubstr("already joined"));
}

TEST(FewerNodes, RanksAreNumberedAgainDownToTheLeast) {
  Driver job(PlanWithSpares(3, 2, 0, 2));
  job.JoinAll();
  LoseNode1(&job);
  job.Handle(AgentEnded{1});
  job.Pass(milliseconds(10), {0, 2});
  EXPECT_THAT(RanksOf(job, 0), ElementsAre(0, 1));
  EXPECT_THAT(RanksOf(job, 2), ElementsAre(2, 3));
  EXPECT_EQ(AssignmentOf(job, 2).world_size(), 4u);
  EXPECT_EQ(AssignmentOf(job, 2).placement().node(), 1u);
  ASSERT_EQ(job.members().size(), 1u);
  EXPECT_THAT(job.members()[0].changes(0),
              HasSubstr("without node1, with 2 nodes and 4 ranks, which are numbered again"));
  job.Handle(Disconnected{Driver::Of(2), "its connection broke"});
  job.Pass(milliseconds(200), {0});
  for (const uint32_t rank : {0u, 1u}) job.Exit(Killed(rank, SIGTERM, true));
  job.Done(0);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->not_restarted(), HasSubstr("fewer than the 2"));
}

TEST(FewerNodes, ANodeThatWasGivenUpDoesNotComeBack) {
  Driver job(PlanWithSpares(3, 2, 0, 2));
  job.JoinAll();
  LoseNode1(&job);
  job.Handle(AgentEnded{1});
  job.Pass(milliseconds(10), {0, 2});
  for (const uint32_t node : {1u, 2u}) {  // the last place is one that there was
    v1::NodeOffer offer = MakeOffer(node);
    job.JoinAs(100 + node, offer);
    EXPECT_TRUE(job.Closed(100 + node));
    ASSERT_NE(job.Last(100 + node, v1::ToAgent::kRefused), nullptr);
    EXPECT_THAT(job.Last(100 + node, v1::ToAgent::kRefused)->refused(), HasSubstr("already joined, or was given up"));
  }
}

TEST(FewerNodes, ALossWhileTheJobPausesCounts) {
  Driver job(PlanWithSpares(3, 2, 0, 2));
  job.JoinAll();
  LoseNode1(&job);
  ASSERT_EQ(job.restarts().size(), 1u);
  job.Handle(Disconnected{Driver::Of(2), "its connection broke"});
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->headline(), HasSubstr("fewer than the 2"));
}

TEST(FewerNodes, TheJobDoesNotShrinkWithoutTheRendezvousHost) {
  Driver job(PlanWithSpares(2, 1, 1, 1));
  job.JoinAll();
  job.Handle(Disconnected{Driver::Of(0), "its connection broke"});
  job.Pass(milliseconds(200), {1});
  job.Exit(Killed(1, SIGTERM, true));
  job.Done(1);
  ASSERT_TRUE(job.report().has_value());
  EXPECT_THAT(job.report()->not_restarted(), HasSubstr("hosts the rendezvous"));
}

TEST(Plan, APlanWhoseSparesCannotTakeAPlaceIsRefused) {
  EXPECT_TRUE(CheckPlan(PlanWithSpares(2, 2, 1, 1)).ok());
  v1::JobPlan uneven = PlanWithSpares(2, 2, 1);
  uneven.mutable_placements(1)->mutable_ranks()->RemoveLast();
  EXPECT_THAT(std::string(CheckPlan(uneven).message()), HasSubstr("would take the place of node1"));
  EXPECT_FALSE(CheckPlan(PlanWithSpares(2, 2, 0, 3)).ok());
}

TEST(Lease, ALeaseRunsFromTheSendingOfTheLatestAnsweredBeat) {
  const TimePoint start{seconds(100)};
  Lease lease(start);
  EXPECT_EQ(lease.End(), start + kSilenceTimeout);
  const uint64_t first = lease.NextBeat(start + seconds(1));
  const uint64_t second = lease.NextBeat(start + seconds(2));
  lease.OnAnswer(first);  // whenever it comes
  EXPECT_EQ(lease.End(), start + seconds(1) + kSilenceTimeout);
  lease.OnAnswer(first);
  lease.OnAnswer(second + 100);  // answers to nothing prove nothing later
  EXPECT_EQ(lease.End(), start + seconds(2) + kSilenceTimeout);
  lease.GiveSecondChance(start + seconds(20));
  EXPECT_EQ(lease.End(), start + seconds(20) + kSecondChance);
}

}  // namespace
}  // namespace cohort::launcher
