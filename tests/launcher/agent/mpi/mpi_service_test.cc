// Nodes whose ranks are played by this test, through their sockets of PMI-1 and servers of PMIx that are pretended.
#include "cohort/launcher/agent/mpi/mpi_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/launcher/agent/mpi/job_variables.h"

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SilentServer : public PmixEndpoint {
 public:
  std::vector<std::string> EnvironmentOf(int) override { return {}; }
  void Answer(uint64_t, const std::string&) override {}
  void AnswerLookUp(uint64_t, const std::string&, const std::string&) override {}
  void AnswerSpawn(uint64_t, const std::string&) override {}
  void Refuse(uint64_t, Refusal) override {}
  void AskForValues(int) override {}
  std::string version() const override { return "4.2"; }
};

class MpiServiceTest : public ::testing::Test {
 protected:
  struct Node {
    v1::Assignment assignment;
    std::unique_ptr<MpiService> service;
    PmixEndpoint::Handler tell;
    std::vector<std::string> said;
    std::vector<std::pair<int, std::string>> stuck;
  };

  static constexpr std::chrono::milliseconds kLongestDelay{2};

  // A node of `ranks` ranks, with PMIx or without.
  Node& AddNode(size_t index, size_t nodes, uint32_t ranks, bool has_pmix) {
    Node& node = *nodes_.emplace_back(std::make_unique<Node>());
    v1::JobSpec& job = *node.assignment.mutable_job();
    job.set_job_id("job");
    job.set_serves_pmi1(true);
    job.set_pmix(v1::JobSpec::PMIX_IF_PRESENT);
    node.assignment.set_epoch(1);
    node.assignment.set_world_size(ranks * static_cast<uint32_t>(nodes));
    node.assignment.mutable_placement()->set_node(static_cast<uint32_t>(index));
    for (uint32_t i = 0; i < nodes; ++i) {
      v1::Node& one = *node.assignment.add_nodes();
      one.set_name("node" + std::to_string(i));
      one.set_first_rank(i * ranks);
      one.set_rank_count(ranks);
    }
    for (uint32_t i = 0; i < ranks; ++i) {
      v1::RankPlacement& rank = *node.assignment.mutable_placement()->add_ranks();
      rank.set_local_rank(i);
      rank.set_rank(static_cast<uint32_t>(index) * ranks + i);
    }
    node.service = std::make_unique<MpiService>(
        &loop_, node.assignment,
        MpiService::Callbacks{
            .ask = variables_.AskFor(
                [service = &node.service](const v1::VariableReply& reply) { (*service)->store().OnReply(reply); }),
            .on_notice = [&node](const std::string& text) { node.said.push_back(text); },
            .on_left = [&node](const std::string& text) { node.said.push_back(text); },
            .on_abort = [](int, int) {},
            .on_stuck = [&node](int rank, const std::string& why) { node.stuck.emplace_back(rank, why); },
            .on_spawn = [](int, MpiWay, const SpawnRequest&, const SpawnDone&) {}},
        MpiDelays{.cause_may_show = cause_may_show_,
                  .absence_is_told = std::chrono::hours(1),
                  .wait_is_told = kLongestDelay});
    const absl::Status started = node.service->Start(
        [&](const PmixEndpoint::Job&, PmixEndpoint::Handler handle) -> absl::StatusOr<std::unique_ptr<PmixEndpoint>> {
          if (!has_pmix) return absl::NotFoundError("no libpmix");
          node.tell = std::move(handle);
          return std::make_unique<SilentServer>();
        });
    EXPECT_TRUE(started.ok()) << started;
    return node;
  }
  // Runs all that is ready, and then what the service does after its delays: its timers began before this one.
  void Settle() {
    RunPosted(&loop_);
    loop_.After(kLongestDelay, [this] { loop_.Quit(); });
    loop_.Run();
    RunPosted(&loop_);
  }
  // A line of PMI-1.
  void Say(Node& node, int local_rank, const std::string& line) {
    Write(node, local_rank, line);
    Settle();
  }
  static void Write(Node& node, int local_rank, const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(::write(node.service->InheritedBy(local_rank), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }

  // Before AddNode. At most kLongestDelay where its end is awaited.
  std::chrono::nanoseconds cause_may_show_ = std::chrono::milliseconds(1);
  EventLoop loop_;
  JobVariables variables_{&loop_};
  std::vector<std::unique_ptr<Node>> nodes_;
};

constexpr char kInit[] = "cmd=init pmi_version=1 pmi_subversion=1";

TEST_F(MpiServiceTest, TellsThatPmixIsAbsentWhenARankEndsWithoutPmi1) {
  Node& node = AddNode(0, 1, 2, false);
  EXPECT_THAT(node.said, IsEmpty());
  node.service->OnEnded(1);
  node.service->OnEnded(0);
  ASSERT_EQ(node.said.size(), 1u);
  EXPECT_THAT(node.said[0],
              HasSubstr("if the program uses Open MPI, each rank is alone in it, as rank 0 of 1: no libpmix"));
}

TEST_F(MpiServiceTest, SaysNothingOfPmixToRanksOfMpich) {
  Node& node = AddNode(0, 1, 2, false);
  Say(node, 0, kInit);
  node.service->OnEnded(1);
  EXPECT_THAT(node.said, IsEmpty());
  Node& alone = AddNode(0, 1, 1, false);
  alone.service->OnEnded(0);
  EXPECT_THAT(alone.said, IsEmpty()) << "a world of one is right";
}

TEST_F(MpiServiceTest, EndsARankOfOpenMpiWhereAnotherNodeHasNoPmix) {
  Node& with = AddNode(0, 2, 1, true);
  AddNode(1, 2, 1, false);
  Settle();
  EXPECT_THAT(with.stuck, IsEmpty()) << "the program may be one of MPICH";
  with.tell(PmixEndpoint::Connected{0});
  Settle();
  ASSERT_EQ(with.stuck.size(), 1u);
  EXPECT_THAT(with.stuck[0].second, HasSubstr("the ranks of node1, which has no PMIx: no libpmix"));
}

TEST_F(MpiServiceTest, EndsARankThatIsInMpiForEachThatLeft) {
  Node& node = AddNode(0, 1, 4, true);
  for (int rank = 1; rank < 4; ++rank) Say(node, rank, kInit);
  const auto leave = [&](int rank) {
    ::shutdown(node.service->InheritedBy(rank), SHUT_RDWR);
    Settle();
  };
  leave(2);
  leave(1);
  ASSERT_EQ(node.stuck.size(), 2u) << "each is told, as a job may go on after the first";
  EXPECT_EQ(node.stuck[0].first, 1) << "not rank 0, which does not use MPI";
  EXPECT_THAT(node.stuck[0].second, HasSubstr("rank 2, which has ended without MPI_Finalize"));
  EXPECT_EQ(node.stuck[1].first, 3);
}

TEST_F(MpiServiceTest, KnowsTheEndOfARankWhoseConnectionAnotherProcessHolds) {
  Node& node = AddNode(0, 1, 2, true);
  for (int rank = 0; rank < 2; ++rank) Say(node, rank, kInit);
  node.service->OnEnded(0);
  Settle();
  ASSERT_EQ(node.stuck.size(), 1u);
  EXPECT_EQ(node.stuck[0], std::pair(1, std::string("it can't go on in MPI without rank 0, which has ended without "
                                                    "MPI_Finalize")));
}

TEST_F(MpiServiceTest, ReadsWhatARankSaidLast) {
  Node& node = AddNode(0, 1, 2, true);
  for (int rank = 0; rank < 2; ++rank) Say(node, rank, kInit);
  Write(node, 0, "cmd=finalize");
  node.service->OnEnded(0);
  Settle();
  EXPECT_THAT(node.stuck, IsEmpty());
}

TEST_F(MpiServiceTest, EndsNoRankThatHasLeftMpiMeanwhile) {
  Node& node = AddNode(0, 1, 2, true);
  for (int rank = 0; rank < 2; ++rank) Say(node, rank, kInit);
  ::shutdown(node.service->InheritedBy(0), SHUT_RDWR);
  ::shutdown(node.service->InheritedBy(1), SHUT_RDWR);
  Settle();
  EXPECT_THAT(node.stuck, IsEmpty()) << "a program that calls no MPI_Finalize at all";
}

TEST_F(MpiServiceTest, TellsWhichRankHadJustLeftWhereAnotherFails) {
  cause_may_show_ = std::chrono::hours(1);
  Node& pmi1 = AddNode(0, 1, 3, true);
  for (int rank = 0; rank < 3; ++rank) Say(pmi1, rank, kInit);
  Write(pmi1, 2, "cmd=finalize");
  pmi1.service->OnEnded(2, true);
  pmi1.service->OnEnded(1, true);
  Settle();
  for (int times = 0; times < 2; ++times) pmi1.service->OnFailure();
  EXPECT_THAT(pmi1.said, IsEmpty()) << "the failure is told first";
  RunPosted(&loop_);
  EXPECT_THAT(pmi1.said, ElementsAre("rank 1 has ended without MPI_Finalize"));
  Node& pmix = AddNode(1, 2, 1, true);
  pmix.tell(PmixEndpoint::Connected{0});
  Settle();
  pmix.service->OnFailure();  // its node may learn of that first
  pmix.service->OnEnded(0, true);
  Settle();
  EXPECT_THAT(pmix.said, ElementsAre("rank 1 of node1 has ended without MPI_Finalize"));
}

TEST_F(MpiServiceTest, TellsWhichRankHadLeftWhereTheFailureComesBeforePmixKnows) {
  cause_may_show_ = std::chrono::hours(1);
  Node& node = AddNode(0, 1, 2, true);
  for (int rank = 0; rank < 2; ++rank) node.tell(PmixEndpoint::Connected{rank});
  Settle();
  node.service->OnEnded(1, true);
  node.service->OnFailure();
  EXPECT_THAT(node.said, IsEmpty());
  RunPosted(&loop_);
  EXPECT_THAT(node.said, ElementsAre("rank 1 has ended without MPI_Finalize"));
}

TEST_F(MpiServiceTest, TellsOfNoRankThatFailedItselfOrUsesNoMpiOrLeftLongBefore) {
  Node& node = AddNode(0, 1, 2, true);
  Say(node, 0, kInit);
  node.service->OnEnded(0, true);
  Settle();
  node.service->OnFailure();  // it is to be told by on_stuck
  RunPosted(&loop_);
  EXPECT_THAT(node.said, IsEmpty());
  cause_may_show_ = std::chrono::hours(1);
  Node& other = AddNode(0, 1, 2, true);
  Say(other, 0, kInit);
  other.service->OnEnded(0, false);
  other.service->OnEnded(1, true);
  Settle();
  other.service->OnFailure();
  RunPosted(&loop_);
  EXPECT_THAT(other.said, IsEmpty());
}

TEST_F(MpiServiceTest, EndsARankThatIsInMpiWhereItsValuesAreRefused) {
  Node& node = AddNode(0, 2, 2, true);
  Say(node, 1, kInit);
  v1::VariableReply reply;
  reply.set_request(999);
  reply.set_error("full");
  node.service->store().OnReply(reply);
  Settle();
  ASSERT_EQ(node.stuck.size(), 1u);
  EXPECT_EQ(node.stuck[0], std::pair(1, std::string("its MPI values were refused: full")));
}

TEST_F(MpiServiceTest, NamesTheNodesThatABarrierWaitsFor) {
  Node& first = AddNode(0, 3, 1, true);
  AddNode(1, 3, 1, true);
  Node& last = AddNode(2, 3, 1, true);
  for (int times = 1; times <= 2; ++times) {
    for (Node* node : {&first, &last}) {
      if (times == 1) Write(*node, 0, kInit);
      Write(*node, 0, "cmd=barrier_in");
    }
    Settle();
    ASSERT_EQ(first.said.size(), static_cast<size_t>(times)) << "each wait is told";
    EXPECT_THAT(first.said.back(), HasSubstr("MPI's barrier (MPI_Init is one) has waited 0 s for node node1"));
    EXPECT_THAT(last.said, IsEmpty()) << "the first node says it for all";
    if (times == 1) Say(*nodes_[1], 0, kInit);
    Say(*nodes_[1], 0, "cmd=barrier_in");
  }
}

TEST_F(MpiServiceTest, NamesTheNodesThatAFenceWaitsFor) {
  Node& first = AddNode(0, 2, 1, true);
  Node& last = AddNode(1, 2, 1, true);
  for (uint64_t times = 1; times <= 2; ++times) {
    first.tell(PmixEndpoint::Fence{times, {}, ""});
    Settle();
    ASSERT_EQ(first.said.size(), times) << "each wait is told";
    EXPECT_THAT(first.said.back(), HasSubstr("MPI's fence (MPI_Init has one) has waited 0 s for node node1"));
    last.tell(PmixEndpoint::Fence{times, {}, ""});
    Settle();
  }
}

}  // namespace
}  // namespace cohort::launcher
