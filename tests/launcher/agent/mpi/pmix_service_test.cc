// Fences and values of ranks of several nodes, by servers that are pretended.
#include "cohort/launcher/agent/mpi/pmix_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/launcher/agent/mpi/job_variables.h"

namespace cohort::launcher {
namespace {

constexpr int kRankWithoutValues = 5;

class FakeServer : public PmixEndpoint {
 public:
  FakeServer(Job job, Handler handle, std::vector<std::string>* answers)
      : job_(std::move(job)), handle_(std::move(handle)), answers_(answers) {}
  std::vector<std::string> EnvironmentOf(int local_rank) override { return {"R=" + std::to_string(local_rank)}; }
  void Answer(uint64_t number, const std::string& values) override {
    answers_->push_back(std::to_string(number) + ":" + values);
  }
  void AnswerLookUp(uint64_t number, const std::string& name, const std::string& value) override {
    answers_->push_back(std::to_string(number) + ":" + name + "=" + value);
  }
  void AnswerSpawn(uint64_t number, const std::string& world) override {
    answers_->push_back(std::to_string(number) + " runs " + world);
  }
  void Refuse(uint64_t number, Refusal why) override {
    const bool known = why == Refusal::kNotFound;
    answers_->push_back(std::to_string(number) + " refused" + (known ? "" : " as " + std::to_string(int(why))));
  }
  void AskForValues(int local_rank) override {
    const int rank = job_.nodes[job_.own].first_rank + local_rank;
    if (rank == kRankWithoutValues) return handle_(Values{local_rank, "", false});
    handle_(Values{local_rank, "values of " + std::to_string(rank)});
  }
  std::string version() const override { return job_.nodes[job_.own].name == "other" ? "5.0" : "4.2"; }
  const Job& job() const { return job_; }

 private:
  const Job job_;
  const Handler handle_;
  std::vector<std::string>* const answers_;
};

// Nodes of two ranks each, and the store between them.
class PmixServiceTest : public ::testing::Test {
 protected:
  struct Node {
    v1::Assignment assignment;
    std::unique_ptr<StoredValues> store;
    std::unique_ptr<PmixService> service;
    PmixEndpoint::Handler tell;
    std::vector<std::string> answers;
    std::vector<std::string> said;
    std::vector<std::pair<int, std::string>> stuck;
    std::vector<std::pair<int, int>> aborted;
    std::vector<std::pair<int, std::string>> spawned;
    PmixEndpoint::Job job;
  };

  void Start(size_t nodes, const std::string& name = "host") {
    for (size_t i = 0; i < nodes; ++i) {
      Node& node = *nodes_.emplace_back(std::make_unique<Node>());
      node.assignment.mutable_job()->set_job_id("job");
      node.assignment.mutable_job()->set_nodes_share_host(nodes_share_host_);
      node.assignment.set_epoch(1);
      for (const auto& [first, last] : programs_) {
        v1::RankSpan& span = *node.assignment.mutable_job()->add_programs()->add_ranks();
        span.set_first(first);
        span.set_last(last);
      }
      node.assignment.set_world_size(static_cast<uint32_t>(2 * nodes));
      node.assignment.mutable_placement()->set_node(static_cast<uint32_t>(i));
      for (size_t j = 0; j < nodes; ++j) {
        v1::Node& one = *node.assignment.add_nodes();
        one.set_name(j == other_ ? "other" : name);
        one.set_first_rank(static_cast<uint32_t>(2 * j));
        one.set_rank_count(2);
      }
      for (uint32_t rank = 0; rank < 2; ++rank) node.assignment.mutable_placement()->add_ranks()->set_local_rank(rank);
      node.store = std::make_unique<StoredValues>(
          &loop_, ".mpi/1/",
          StoredValues::Callbacks{.ask = variables_.AskFor([store = &node.store](const v1::VariableReply& reply) {
                                    (*store)->OnReply(reply);
                                  }),
                                  .on_refused = [](const std::string&) {}});
      node.service = std::make_unique<PmixService>(
          &loop_, node.assignment, node.store.get(),
          PmixService::Callbacks{
              .on_notice = [&node](const std::string& text) { node.said.push_back(text); },
              .on_abort = [&node](int rank, int code) { node.aborted.emplace_back(rank, code); },
              .on_stuck = [&node](int rank, const std::string& why) { node.stuck.emplace_back(rank, why); },
              .on_spawn =
                  [&node](int rank, const SpawnRequest& request, const SpawnDone& done) {
                    node.spawned.emplace_back(rank, request.programs[0].argv[0]);
                    if (request.programs[0].argv[0] == "absent") return done(absl::NotFoundError("there is none"));
                    done("world");
                  }},
          std::chrono::seconds(30));
      const absl::Status started =
          node.service->Start(2, [&node](const PmixEndpoint::Job& job, PmixEndpoint::Handler handle) {
            node.job = job;
            node.tell = handle;
            return std::make_unique<FakeServer>(job, handle, &node.answers);
          });
      ASSERT_TRUE(started.ok()) << started;
    }
  }
  // The first and last rank of each of the job's programs. Before Start.
  void SetPrograms(std::vector<std::pair<uint32_t, uint32_t>> programs) { programs_ = std::move(programs); }
  Node& node(size_t i) { return *nodes_[i]; }
  void Tell(size_t i, PmixEndpoint::Event event) { node(i).tell(std::move(event)); }
  void Settle() { RunPosted(&loop_); }
  // Whether any of the job's variables that were set has that in its name.
  bool HasStored(const std::string& part) const {
    return std::any_of(
        variables_.requests().begin(), variables_.requests().end(), [&part](const v1::VariableRequest& request) {
          return request.kind() == v1::VariableRequest::KIND_SET && request.key().find(part) != std::string::npos;
        });
  }

  EventLoop loop_;
  JobVariables variables_{&loop_};
  std::vector<std::pair<uint32_t, uint32_t>> programs_;
  bool nodes_share_host_ = false;
  size_t other_ = 1000;  // the node whose server has another version
  std::vector<std::unique_ptr<Node>> nodes_;
};

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(PmixServiceTest, PassesARequestForProcessesOnAndItsOutcomeBack) {
  Start(1);
  for (const auto& [number, program] : {std::pair<uint64_t, std::string>(1, "x"), {2, "absent"}}) {
    SpawnRequest request;
    request.programs.push_back({.argv = {program}, .directory = {}, .path = {}, .environment = {}});
    Tell(0, PmixEndpoint::Spawn{number, 1, request});
  }
  Settle();
  EXPECT_THAT(node(0).spawned, ElementsAre(std::pair(1, "x"), std::pair(1, "absent")));
  EXPECT_THAT(node(0).answers,
              ElementsAre("1 runs world", "2 refused as " + std::to_string(int(PmixEndpoint::Refusal::kFailed))));
}

TEST_F(PmixServiceTest, LetsRanksOfSeveralWorldsJoinOnOneNode) {
  Start(1);
  Tell(0, PmixEndpoint::Joined{1, true, "values"});
  for (uint64_t number = 2; number < 4; ++number) Tell(0, PmixEndpoint::Joined{number, false, ""});
  Settle();
  const std::string refused = " refused as " + std::to_string(int(PmixEndpoint::Refusal::kNotSupported));
  EXPECT_THAT(node(0).answers, ElementsAre("1:values", "2" + refused, "3" + refused));
  EXPECT_THAT(node(0).said, ElementsAre(HasSubstr("run on one node"))) << "it is told once";
}

TEST_F(PmixServiceTest, JoinsTheValuesOfAllNodes) {
  Start(2);
  for (uint64_t round = 1; round <= 2; ++round) {
    Tell(0, PmixEndpoint::Fence{round, {}, "a"});
    Settle();
    EXPECT_EQ(node(0).answers.size(), round - 1) << "it waits for the other node";
    Tell(1, PmixEndpoint::Fence{round, {}, "b"});
    Settle();
  }
  EXPECT_THAT(node(0).answers, ElementsAre("1:ab", "2:ab"));
  EXPECT_THAT(node(1).answers, ElementsAre("1:ba", "2:ba"));
}

TEST_F(PmixServiceTest, JoinsTheNodesOfTheRanksInAFence) {
  Start(3);
  Tell(0, PmixEndpoint::Fence{1, {1, 4}, "a"});
  Tell(2, PmixEndpoint::Fence{1, {1, 4}, "c"});
  Tell(1, PmixEndpoint::Fence{1, {2, 3}, "b"});
  Settle();
  EXPECT_THAT(node(0).answers, ElementsAre("1:ac"));
  EXPECT_THAT(node(1).answers, ElementsAre("1:b"));
  EXPECT_THAT(node(2).answers, ElementsAre("1:ca"));
}

TEST_F(PmixServiceTest, StoresNothingOfAFenceWithinANode) {
  Start(2);
  for (uint64_t number = 1; number <= 3; ++number) Tell(1, PmixEndpoint::Fence{number, {2, 3}, "values"});
  Settle();
  EXPECT_THAT(node(1).answers, ElementsAre("1:values", "2:values", "3:values"));
  EXPECT_FALSE(HasStored("fence/"));
}

TEST_F(PmixServiceTest, FetchesTheValuesOfARankThatWereInNoFence) {
  Start(3);
  Tell(0, PmixEndpoint::Wanted{5, 3});
  Tell(2, PmixEndpoint::Wanted{6, 2});
  Settle();
  EXPECT_THAT(node(0).answers, ElementsAre("5:values of 3"));
  EXPECT_THAT(node(2).answers, ElementsAre("6:values of 2"));
}

TEST_F(PmixServiceTest, RefusesAWishForTheValuesOfARankThatHasNone) {
  Start(3);
  Tell(0, PmixEndpoint::Wanted{5, kRankWithoutValues});
  Settle();
  EXPECT_THAT(node(0).answers, ElementsAre("5 refused"));
}

TEST_F(PmixServiceTest, RefusesAWishForTheValuesOfARankThatTheJobHasNot) {
  Start(2);
  uint64_t number = 0;
  for (const int rank : {4, 1'000'000, -2}) Tell(0, PmixEndpoint::Wanted{++number, rank});
  Settle();
  EXPECT_EQ(node(0).answers.size(), 3u) << "a rank that waits for one would wait for ever";
  EXPECT_THAT(node(0).answers, ::testing::Each(HasSubstr("refused")));
}

TEST_F(PmixServiceTest, GivesAValueThatIsReadOnceToOneRank) {
  Start(2);
  Tell(0, PmixEndpoint::Publish{1, "name", "value", /*once=*/true});
  Settle();
  for (size_t i = 0; i < 2; ++i) Tell(i, PmixEndpoint::LookUp{2, "name", std::chrono::milliseconds(0)});
  Settle();
  std::vector<std::string> answers = {node(0).answers.back(), node(1).answers.back()};
  std::sort(answers.begin(), answers.end());
  EXPECT_THAT(answers, ElementsAre("2 refused", "2:name=value"));
}

TEST_F(PmixServiceTest, EndsARankWhereTheServersOfNodesDiffer) {
  other_ = 1;
  Start(2);
  for (size_t i = 0; i < 2; ++i) Tell(i, PmixEndpoint::Connected{0});
  for (size_t i = 0; i < 2; ++i) Tell(i, PmixEndpoint::Fence{1, {}, "values"});
  Settle();
  EXPECT_THAT(node(0).answers, IsEmpty());
  ASSERT_EQ(node(0).stuck.size(), 1u);
  EXPECT_THAT(node(0).stuck[0].second, HasSubstr("the ranks of other, whose OpenPMIx is 5.0 and not 4.2 as on host"));
}

TEST_F(PmixServiceTest, NamesTheRankThatEndedWithoutFinalize) {
  Start(1);
  Tell(0, PmixEndpoint::Connected{0});
  Settle();
  node(0).service->OnEnded(1);
  Settle();
  ASSERT_EQ(node(0).stuck.size(), 1u);
  EXPECT_EQ(node(0).stuck[0].first, 0);
  EXPECT_THAT(node(0).stuck[0].second, HasSubstr("rank 1, which has ended without MPI_Finalize"));
}

TEST_F(PmixServiceTest, NamesTheRankOfAnotherNodeThatEndedWithoutFinalize) {
  Start(2);
  node(1).service->OnEnded(0);
  Tell(0, PmixEndpoint::Connected{0});
  Settle();
  ASSERT_EQ(node(0).stuck.size(), 1u) << "in whatever call of MPI it is";
  EXPECT_THAT(node(0).stuck[0].second, HasSubstr("rank 2 of host, which has ended without MPI_Finalize"));
}

TEST_F(PmixServiceTest, LeavesRanksAloneThatUseNoMpiOrHaveFinalized) {
  Start(1);
  node(0).service->OnEnded(1);
  Settle();
  EXPECT_EQ(node(0).service->UseOf(0), MpiUse::kNever);
  Start(1);
  Tell(1, PmixEndpoint::Connected{0});
  Tell(1, PmixEndpoint::Connected{1});
  Tell(1, PmixEndpoint::Finalized{1});
  node(1).service->OnEnded(1);
  Settle();
  EXPECT_EQ(node(1).service->UseOf(0), MpiUse::kInside);
  EXPECT_EQ(node(1).service->UseOf(1), MpiUse::kFinalized);
  EXPECT_THAT(node(0).stuck, IsEmpty());
  EXPECT_THAT(node(1).stuck, IsEmpty());
}

TEST_F(PmixServiceTest, TellsTheCodeAndTextOfAnAbort) {
  Start(1);
  Tell(0, PmixEndpoint::Connected{1});
  Tell(0, PmixEndpoint::Aborted{1, 7, "no grid"});
  Tell(0, PmixEndpoint::Said{9, 1, "-----\nMPI_ABORT was invoked\n-----\n"});
  Settle();
  EXPECT_THAT(node(0).aborted, ElementsAre(std::pair(1, 7)));
  EXPECT_THAT(node(0).said,
              ElementsAre("rank 1 has called MPI_Abort: no grid", "MPI of rank 1: MPI_ABORT was invoked"));
  EXPECT_THAT(node(0).answers, ElementsAre("9:"));
}

TEST_F(PmixServiceTest, PassesOnNoMoreThanAUserReads) {
  Start(1);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  for (uint64_t number = 0; number < 100; ++number) Tell(0, PmixEndpoint::Said{number, 0, text});
  Tell(0, PmixEndpoint::Said{100, 1, "another rank"});
  Settle();
  size_t bytes = 0;
  for (const std::string& line : node(0).said) bytes += line.size() - std::string("MPI of rank 0: ").size();
  EXPECT_LT(bytes, 66u << 10);
  EXPECT_GT(bytes, 50u << 10);
  ASSERT_GT(node(0).said.size(), 2u);
  EXPECT_EQ(node(0).said[node(0).said.size() - 2], "MPI of rank 0 says more, which is left out");
  EXPECT_EQ(node(0).said.back(), "MPI of rank 1: another rank");
  EXPECT_EQ(node(0).answers.size(), 101u) << "none is left waiting";
}

TEST_F(PmixServiceTest, PassesOnNoMoreOfAbortsThanAUserReads) {
  Start(1);
  const std::string text = "first line\nsecond line\n" + std::string(1u << 20, 'x');
  for (int times = 0; times < 10; ++times) Tell(0, PmixEndpoint::Aborted{1, 7, text});
  Settle();
  size_t bytes = 0;
  for (const std::string& line : node(0).said) bytes += line.size();
  EXPECT_LT(bytes, 66u << 10);
  ASSERT_GT(node(0).said.size(), 2u);
  EXPECT_EQ(node(0).said[0], "rank 1 has called MPI_Abort: first line");
  EXPECT_EQ(node(0).said[1], "rank 1 has called MPI_Abort: second line");
  EXPECT_EQ(node(0).said.back(), "MPI of rank 1 says more, which is left out");
}

TEST_F(PmixServiceTest, RanksYieldWhereNodesShareTheirCpus) {
  Start(2);
  EXPECT_THAT(node(1).service->EnvironmentOf(1), ElementsAre("R=1"));
  nodes_.clear();
  nodes_share_host_ = true;
  Start(2);
  EXPECT_THAT(node(1).service->EnvironmentOf(0),
              ElementsAre("R=0", "OMPI_MCA_btl=^vader", "OMPI_MCA_mpi_yield_when_idle=1"));
}

TEST_F(PmixServiceTest, TellsTheProgramOfEachRank) {
  SetPrograms({{0, 0}, {1, 3}});
  Start(2);
  EXPECT_THAT(node(0).job.programs, ElementsAre(0, 1, 1, 1));
  EXPECT_EQ(node(1).job.programs, node(0).job.programs);
}

TEST_F(PmixServiceTest, GivesNodesNamesThatDiffer) {
  Start(2, "a,b");
  ASSERT_EQ(node(1).job.nodes.size(), 2u);
  EXPECT_EQ(node(1).job.nodes[0].name, "a_b");
  EXPECT_EQ(node(1).job.nodes[1].name, "a_b-1");
  EXPECT_EQ(node(1).job.own, 1u);
  EXPECT_THAT(node(1).service->EnvironmentOf(1), ElementsAre("R=1"));
}

}  // namespace
}  // namespace cohort::launcher
