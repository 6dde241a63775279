// The answers to PMI-1's commands, barriers among nodes, and clients that do not keep to the rules.
#include "cohort/launcher/agent/mpi/pmi1_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace cohort::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Pmi1Node::Job JobOf(int node, int nodes, int ranks_each) {
  return {.name = "job-1",
          .world_size = nodes * ranks_each,
          .universe = nodes * ranks_each + 1,
          .first_rank = node * ranks_each,
          .local_ranks = ranks_each,
          .nodes = nodes,
          .mapping = "(vector,(0," + std::to_string(nodes) + "," + std::to_string(ranks_each) + "))"};
}

// The only answer among the events; empty: there is none.
std::string AnswerOf(const Pmi1Node::Events& events) {
  std::string line;
  for (const auto& event : events) {
    if (const auto* answer = std::get_if<Pmi1Node::Answer>(&event)) line = answer->line;
  }
  return line;
}

template <typename Kind>
const Kind* Find(const Pmi1Node::Events& events) {
  for (const auto& event : events) {
    if (const auto* found = std::get_if<Kind>(&event)) return found;
  }
  return nullptr;
}

void Init(Pmi1Node& node, int ranks) {
  for (int i = 0; i < ranks; ++i) node.OnLine(i, "cmd=init pmi_version=1 pmi_subversion=1");
}

TEST(Pmi1Node, TellsAClientWhatItIsPartOf) {
  Pmi1Node node(JobOf(1, 2, 2));
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=init pmi_version=1 pmi_subversion=1")),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=init pmi_version=2 pmi_subversion=0")), HasSubstr("rc=-1"));
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get_maxes")), "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=864\n");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get_appnum")), "cmd=appnum appnum=0\n");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get_my_kvsname")), "cmd=my_kvsname kvsname=job-1\n");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get_universe_size")), "cmd=universe_size size=5\n");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=PMI_process_mapping")),
            "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))\n");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=finalize")), "cmd=finalize_ack\n");
  EXPECT_EQ(node.UseOf(0), MpiUse::kFinalized);
  EXPECT_EQ(node.UseOf(1), MpiUse::kNever);
}

TEST(Pmi1Node, HandsValuesOnWithinANode) {
  Pmi1Node node(JobOf(0, 1, 2));
  Init(node, 2);
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=a")), HasSubstr("rc=-1"));
  EXPECT_THAT(AnswerOf(node.OnLine(1, "cmd=put kvsname=job-1 key=a value=x y=1")), HasSubstr("rc=0"));
  EXPECT_TRUE(node.OnLine(0, "cmd=barrier_in").empty());
  const auto out = node.OnLine(1, "cmd=barrier_in");
  ASSERT_EQ(out.size(), 2u);
  for (const auto& event : out) EXPECT_THAT(std::get<Pmi1Node::Answer>(event).line, StartsWith("cmd=barrier_out"));
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=a")), "cmd=get_result rc=0 msg=success value=x y=1\n");
}

TEST(Pmi1Node, ExchangesRandomValuesAmongNodesAtEachBarrier) {
  constexpr int kNodes = 3, kRanks = 2;
  std::mt19937 random(3);
  std::vector<Pmi1Node> nodes;
  for (int i = 0; i < kNodes; ++i) nodes.emplace_back(JobOf(i, kNodes, kRanks));
  for (auto& node : nodes) Init(node, kRanks);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> published(kNodes);
    for (int i = 0; i < kNodes; ++i) {
      for (int rank = 0; rank < kRanks; ++rank) {
        const std::string key = "r" + std::to_string(round) + "-" + std::to_string(i * kRanks + rank);
        const std::string line =
            "cmd=put kvsname=job-1 key=" + key + " value=" + std::string(random() % 300, 'v') + key;
        ASSERT_THAT(AnswerOf(nodes[i].OnLine(rank, line)), HasSubstr("rc=0"));
      }
      EXPECT_TRUE(nodes[i].OnLine(0, "cmd=barrier_in").empty());
      const auto last = nodes[i].OnLine(1, "cmd=barrier_in");
      const auto* publish = Find<Pmi1Node::Publish>(last);
      ASSERT_NE(publish, nullptr);
      EXPECT_EQ(publish->round, static_cast<uint64_t>(round + 1));
      published[i] = publish->values;
    }
    for (int i = 0; i < kNodes; ++i) {
      std::vector<std::string> others;
      for (int other = 0; other < kNodes; ++other) {
        if (other != i) others.push_back(published[other]);
      }
      EXPECT_EQ(nodes[i].OnAllPublished(others).size(), static_cast<size_t>(kRanks));
      for (int rank = 0; rank < kNodes * kRanks; ++rank) {
        const std::string key = "r" + std::to_string(round) + "-" + std::to_string(rank);
        EXPECT_THAT(AnswerOf(nodes[i].OnLine(0, "cmd=get kvsname=job-1 key=" + key)), ::testing::EndsWith(key + "\n"));
      }
    }
  }
}

TEST(Pmi1Node, NamesTheRankThatEndedWithoutFinalize) {
  Pmi1Node node(JobOf(1, 2, 3));
  Init(node, 3);
  node.OnLine(0, "cmd=barrier_in");
  EXPECT_EQ(node.MissingInBarrier(), (std::vector<int>{4, 5}));
  EXPECT_EQ(node.UseOf(2), MpiUse::kInside);
  const auto events = node.OnClosed(2);
  EXPECT_EQ(node.UseOf(2), MpiUse::kLeft);
  const auto* abandoned = Find<Pmi1Node::Abandoned>(events);
  ASSERT_NE(abandoned, nullptr);
  EXPECT_EQ(abandoned->local_rank, 0);
  EXPECT_EQ(abandoned->by, "rank 5, which has ended without MPI_Finalize");
  const auto* left = Find<Pmi1Node::Left>(events);
  ASSERT_NE(left, nullptr) << "for the other node";
  EXPECT_EQ(left->by, 5);
}

TEST(Pmi1Node, EndsARankForOneOfAnotherNodeThatLeft) {
  Pmi1Node before(JobOf(0, 2, 1)), after(JobOf(0, 2, 1)), done(JobOf(0, 2, 1));
  Init(before, 1);
  const auto events = before.OnLeftElsewhere("rank 1 of b");
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr) << "it may wait in MPI_Recv";
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(events)->by, "rank 1 of b");
  EXPECT_TRUE(after.OnLeftElsewhere("rank 1 of b").empty()) << "it is not in MPI";
  EXPECT_NE(Find<Pmi1Node::Abandoned>(after.OnLine(0, "cmd=init pmi_version=1 pmi_subversion=1")), nullptr);
  Init(done, 1);
  done.OnLine(0, "cmd=finalize");
  EXPECT_TRUE(done.OnLeftElsewhere("rank 1 of b").empty());
}

TEST(Pmi1Node, EndsARankThatIsInNoBarrierForOneThatLeft) {
  Pmi1Node node(JobOf(0, 1, 2));
  Init(node, 2);
  const auto events = node.OnClosed(0);
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr) << "it may wait in MPI_Recv";
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(events)->local_rank, 1);
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(events)->by, "rank 0, which has ended without MPI_Finalize");
}

TEST(Pmi1Node, NamesTheRankThatEndedInABarrier) {
  Pmi1Node node(JobOf(0, 1, 2));
  Init(node, 2);
  node.OnLine(0, "cmd=barrier_in");
  const auto events = node.OnClosed(0);
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr) << "it comes to no further one";
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(events)->local_rank, 1);
}

TEST(Pmi1Node, NamesTheRankThatEndedBeforeInit) {
  Pmi1Node node(JobOf(0, 2, 2));
  const auto closed = node.OnClosed(1);
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(closed), nullptr) << "nobody uses MPI so far";
  EXPECT_NE(Find<Pmi1Node::Left>(closed), nullptr) << "the other node may";
  Init(node, 1);
  const auto events = node.OnLine(0, "cmd=barrier_in");
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr);
  EXPECT_THAT(Find<Pmi1Node::Abandoned>(events)->by, StartsWith("rank 1,"));
}

TEST(Pmi1Node, NamesTheRankThatEndedBeforeInitToRanksThatSayNothing) {
  Pmi1Node first(JobOf(0, 1, 2)), last(JobOf(0, 1, 2));
  EXPECT_TRUE(first.OnClosed(1).empty());
  const auto after = first.OnLine(0, "cmd=init pmi_version=1 pmi_subversion=1");
  ASSERT_NE(Find<Pmi1Node::Abandoned>(after), nullptr);
  EXPECT_THAT(Find<Pmi1Node::Abandoned>(after)->by, StartsWith("rank 1,"));
  Init(last, 1);
  const auto events = last.OnClosed(1);
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr);
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(events)->local_rank, 0);
}

TEST(Pmi1Node, LetsARankEndAfterFinalize) {
  Pmi1Node node(JobOf(0, 1, 2));
  Init(node, 2);
  node.OnLine(1, "cmd=finalize");
  EXPECT_TRUE(node.OnClosed(1).empty());
}

TEST(Pmi1Node, EndsARankThatWaitsForOneThatHasFinalized) {
  Pmi1Node before(JobOf(0, 1, 2)), after(JobOf(0, 1, 2));
  for (Pmi1Node* node : {&before, &after}) {
    Init(*node, 2);
    node->OnLine(1, "cmd=finalize");
  }
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(before.OnLine(0, "cmd=barrier_in")), nullptr) << "a second program may come";
  const auto closed = before.OnClosed(1);
  ASSERT_NE(Find<Pmi1Node::Abandoned>(closed), nullptr);
  EXPECT_EQ(Find<Pmi1Node::Abandoned>(closed)->by, "rank 1, which has ended after MPI_Finalize");
  EXPECT_TRUE(after.OnClosed(1).empty()) << "nobody waits for it";
  EXPECT_NE(Find<Pmi1Node::Abandoned>(after.OnLine(0, "cmd=barrier_in")), nullptr);
}

TEST(Pmi1Node, RefusesASecondProgramOfARankThatIsInMpi) {
  Pmi1Node node(JobOf(0, 1, 2));
  Init(node, 2);
  const auto events = node.OnLine(1, "cmd=init pmi_version=1 pmi_subversion=1");
  EXPECT_THAT(AnswerOf(events), HasSubstr("rc=-1"));
  ASSERT_NE(Find<Pmi1Node::Nested>(events), nullptr);
  EXPECT_EQ(Find<Pmi1Node::Nested>(events)->local_rank, 1);
  const auto again = node.OnLine(1, "cmd=init pmi_version=1 pmi_subversion=1");
  EXPECT_EQ(Find<Pmi1Node::Nested>(again), nullptr) << "a client that repeats it is told once";
  EXPECT_THAT(AnswerOf(again), HasSubstr("rc=-1"));
  node.OnLine(1, "cmd=barrier_in");
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=barrier_in")), "cmd=barrier_out rc=0\n") << "the first goes on";
  node.OnLine(1, "cmd=finalize");
  EXPECT_THAT(AnswerOf(node.OnLine(1, "cmd=init pmi_version=1 pmi_subversion=1")), HasSubstr("rc=0"));
}

TEST(Pmi1Node, TellsOfAnAbort) {
  Pmi1Node node(JobOf(0, 1, 1));
  Init(node, 1);
  const auto events = node.OnLine(0, "cmd=abort exitcode=7");
  ASSERT_NE(Find<Pmi1Node::Aborted>(events), nullptr);
  EXPECT_EQ(Find<Pmi1Node::Aborted>(events)->code, 7);
}

TEST(Pmi1Node, AsksForProcessesAfterTheLastLine) {
  Pmi1Node node(JobOf(0, 1, 1));
  Init(node, 1);
  for (const char* line : {"mcmd=spawn", "nprocs=2", "execname=x", "argcnt=0", "cmd=finalize"}) {
    EXPECT_TRUE(node.OnLine(0, line).empty()) << line;
  }
  const auto events = node.OnLine(0, "endcmd");
  const auto* spawn = Find<Pmi1Node::Spawn>(events);
  ASSERT_NE(spawn, nullptr);
  ASSERT_EQ(spawn->request.programs.size(), 1u);
  EXPECT_EQ(spawn->request.programs[0].count, 2);
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get_appnum")), "cmd=appnum appnum=0\n");
  EXPECT_EQ(Pmi1Node::SpawnAnswer(absl::OkStatus(), 2), "cmd=spawn_result rc=0 errcodes=0,0\n");
  EXPECT_EQ(Pmi1Node::SpawnAnswer(absl::NotFoundError("no x\nhere"), 2), "cmd=spawn_result rc=-1 msg=no_x_here\n");
}

TEST(Pmi1Node, RefusesARequestForProcessesThatIsNone) {
  Pmi1Node node(JobOf(0, 1, 1));
  const auto ask = [&node](const std::vector<std::string>& lines) {
    node.OnLine(0, "mcmd=spawn");
    for (const std::string& line : lines) node.OnLine(0, line);
    return AnswerOf(node.OnLine(0, "endcmd"));
  };
  EXPECT_THAT(ask({"nprocs=1", "execname=x"}), StartsWith("cmd=spawn_result rc=-1")) << "before init";
  Init(node, 1);
  EXPECT_THAT(ask({}), StartsWith("cmd=spawn_result rc=-1"));
  EXPECT_THAT(ask({"nprocs=-4", "execname=x"}), StartsWith("cmd=spawn_result rc=-1"));
  EXPECT_EQ(ask({"nprocs=1", "execname=x"}), "") << "it is asked";
}

TEST(Pmi1Node, PassesCallsOnNamesOn) {
  using Kind = Pmi1Node::NameCall::Kind;
  Pmi1Node node(JobOf(0, 1, 1));
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=publish_name service=s port=p")), HasSubstr("rc=-1")) << "before init";
  Init(node, 1);
  const auto events = node.OnLine(0, "cmd=publish_name service=s port=tag#0$");
  const auto* call = Find<Pmi1Node::NameCall>(events);
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->kind, Kind::kPublish);
  EXPECT_EQ(call->name, "s");
  EXPECT_EQ(call->port, "tag#0$");
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=lookup_name service=")), HasSubstr("rc=-1"));
  EXPECT_EQ(Pmi1Node::NameAnswer(Kind::kLookUp, "", "p"), "cmd=lookup_result port=p info=ok rc=0 msg=success\n");
  EXPECT_EQ(Pmi1Node::NameAnswer(Kind::kUnpublish, "not there"),
            "cmd=unpublish_result info=not_there rc=-1 msg=not_there\n");
}

// MPICH 4.0 has no room for others, and breaks.
TEST(Pmi1Node, TellsLimitsWhoseLinesFitAClient) {
  Pmi1Node::Job job = JobOf(0, 1, 1);
  job.name = "job-0123456789abcdef-1000.100.1000-1";
  Pmi1Node node(job);
  Init(node, 1);
  std::string maxes = AnswerOf(node.OnLine(0, "cmd=get_maxes"));
  maxes.pop_back();
  const Pmi1Message limits = Pmi1Message::Parse(maxes);
  const auto limit = [&limits](const char* name) { return static_cast<size_t>(limits.GetNumber(name, 0)); };
  EXPECT_LT(job.name.size(), limit("kvsname_max"));
  ASSERT_GT(limit("vallen_max"), 256u) << "what a client takes where nobody tells it";
  const std::string name(limit("kvsname_max"), 'n'), key(limit("keylen_max"), 'k'), value(limit("vallen_max"), 'v');
  EXPECT_LT(("cmd=put kvsname=" + name + " key=" + key + " value=" + value + "\n").size(), kMaxClientLine);
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=put kvsname=" + job.name + " key=" + key + " value=" + value)),
              HasSubstr("rc=0"));
  const std::string found = AnswerOf(node.OnLine(0, "cmd=get kvsname=" + job.name + " key=" + key));
  EXPECT_THAT(found, ::testing::EndsWith(value + "\n"));
  EXPECT_LT(found.size(), kMaxClientLine);
  EXPECT_EQ(Pmi1Node::SpawnAnswer(absl::OkStatus(), 3), "cmd=spawn_result rc=0 errcodes=0,0,0\n");
  for (const int count : {400, 490, 500, 1024}) {
    EXPECT_LT(Pmi1Node::SpawnAnswer(absl::OkStatus(), count).size(), kMaxClientLine) << count;
  }
}

TEST(Pmi1Node, LeavesOutAMapOfProcessesThatNoClientHolds) {
  for (const size_t bytes : {kToldPmiValue - 1, kToldPmiValue}) {
    Pmi1Node::Job job = JobOf(0, 1, 1);
    job.mapping = std::string(bytes, 'm');
    Pmi1Node node(job);
    Init(node, 1);
    EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=PMI_process_mapping")),
                HasSubstr(bytes < kToldPmiValue ? "rc=0" : "rc=-1"));
  }
}

TEST(Pmi1Node, GivesASpawnedWorldItsValues) {
  Pmi1Node::Job job = JobOf(0, 1, 1);
  job.values = {{"PARENT", "port"}, {"", "nothing"}, {"big", std::string(kMaxPmiValue + 1, 'v')}};
  Pmi1Node node(job);
  Init(node, 1);
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=PARENT")), HasSubstr("rc=0 msg=success value=port"));
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=big")), HasSubstr("rc=-1"));
}

TEST(Pmi1Node, RefusesWhatItDoesNotServe) {
  Pmi1Node node(JobOf(0, 1, 2));
  EXPECT_THAT(AnswerOf(node.OnLine(0, "cmd=barrier_in")), HasSubstr("rc=-1")) << "before init";
  Init(node, 2);
  for (const std::string& line :
       {std::string("cmd=put kvsname=other key=k value=v"), std::string("cmd=put kvsname=job-1 value=v"),
        "cmd=put kvsname=job-1 key=k value=" + std::string(kMaxPmiValue + 1, 'v'),
        "cmd=put kvsname=job-1 key=" + std::string(kMaxPmiKey + 1, 'k') + " value=v",
        std::string("cmd=publish_name port=p"), std::string("cmd=dance"), std::string("garbage"), std::string()}) {
    EXPECT_THAT(AnswerOf(node.OnLine(0, line)), HasSubstr("rc=-1")) << line.substr(0, 60);
  }
}

TEST(Pmi1Node, HoldsNoMoreThanItsLimit) {
  Pmi1Node node(JobOf(0, 1, 1));
  Init(node, 1);
  const std::string value(kMaxPmiValue, 'v');
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string line = "cmd=put kvsname=job-1 key=k" + std::to_string(i) + " value=" + value;
    if (AnswerOf(node.OnLine(0, line)).find("rc=0") == std::string::npos) break;
    ++taken;
  }
  EXPECT_LE(static_cast<size_t>(taken) * kMaxPmiValue, Pmi1Node::kMaxBytes);
  EXPECT_GT(taken, 15'000);
}

TEST(Pmi1Node, CountsAValueThatIsReplacedOnce) {
  Pmi1Node node(JobOf(0, 2, 1));
  Init(node, 1);
  const std::string value(kMaxPmiValue, 'v');
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_THAT(AnswerOf(node.OnLine(0, "cmd=put kvsname=job-1 key=k value=" + value)), HasSubstr("rc=0")) << i;
  }
  const auto events = node.OnLine(0, "cmd=barrier_in");
  ASSERT_NE(Find<Pmi1Node::Publish>(events), nullptr);
  EXPECT_EQ(Find<Pmi1Node::Publish>(events)->values, "k " + value + "\n");
}

TEST(Pmi1Node, EndsARankWhereTheValuesOfOtherNodesAreTooMany) {
  Pmi1Node node(JobOf(0, 2, 1));
  Init(node, 1);
  node.OnLine(0, "cmd=barrier_in");
  std::string values;
  for (int i = 0; values.size() <= Pmi1Node::kMaxBytes; ++i) {
    values += "k" + std::to_string(i) + " " + std::string(kMaxPmiValue, 'v') + "\n";
  }
  const auto events = node.OnAllPublished({values});
  EXPECT_EQ(Find<Pmi1Node::Answer>(events), nullptr) << "addresses would be missing";
  ASSERT_NE(Find<Pmi1Node::Abandoned>(events), nullptr);
  EXPECT_THAT(Find<Pmi1Node::Abandoned>(events)->by, HasSubstr("more than 64 MiB"));
}

TEST(Pmi1Node, HandsAnyKeysAndValuesOnToOtherNodes) {
  Pmi1Node node(JobOf(0, 2, 1)), other(JobOf(1, 2, 1));
  Init(node, 1);
  Init(other, 1);
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"a=b", "c=d e"}, {"a", ""}, {"=", "="}, {"x", " y "}};
  for (const auto& [key, value] : pairs) node.OnLine(0, "cmd=put kvsname=job-1 key=" + key + " value=" + value);
  const auto events = node.OnLine(0, "cmd=barrier_in");
  other.OnLine(0, "cmd=barrier_in");
  ASSERT_NE(Find<Pmi1Node::Publish>(events), nullptr);
  other.OnAllPublished({Find<Pmi1Node::Publish>(events)->values});
  for (const auto& [key, value] : pairs) {
    EXPECT_EQ(AnswerOf(other.OnLine(0, "cmd=get kvsname=job-1 key=" + key)),
              "cmd=get_result rc=0 msg=success value=" + value + "\n");
  }
}

TEST(Pmi1Node, HoldsFewerThanAMillionKeysWithoutValues) {
  Pmi1Node node(JobOf(0, 1, 1));
  Init(node, 1);
  int taken = 0;
  while (AnswerOf(node.OnLine(0, "cmd=put kvsname=job-1 key=k" + std::to_string(taken) + " value=")).find("rc=0") !=
         std::string::npos) {
    ASSERT_LT(++taken, 1'000'000);
  }
  EXPECT_GT(taken, 400'000);
  EXPECT_EQ(AnswerOf(node.OnLine(0, "cmd=get kvsname=job-1 key=k7")), "cmd=get_result rc=0 msg=success value=\n");
}

TEST(Pmi1Node, TakesAnyLinesInAnyOrder) {
  std::mt19937 random(5);
  const std::vector<std::string> lines = {"cmd=init pmi_version=1 pmi_subversion=1",
                                          "cmd=barrier_in",
                                          "cmd=finalize",
                                          "cmd=abort exitcode=3",
                                          "mcmd=spawn",
                                          "nprocs=1",
                                          "execname=x",
                                          "cmd=lookup_name service=s",
                                          "endcmd",
                                          "cmd=put kvsname=job-1 key=k value=v",
                                          "cmd=get kvsname=job-1 key=k",
                                          "",
                                          "x"};
  for (int i = 0; i < 300; ++i) {
    Pmi1Node node(JobOf(0, 1 + static_cast<int>(random() % 2), 3));
    for (int step = 0; step < 60; ++step) {
      const int rank = static_cast<int>(random() % 3);
      const int before = node.in_barrier();
      Pmi1Node::Events events;
      switch (random() % 12) {
        case 0:
          events = node.OnClosed(rank);
          break;
        case 1:
          events = node.OnAllPublished({"a b\n", "no_value"});
          break;
        default:
          events = node.OnLine(rank, lines[random() % lines.size()]);
      }
      EXPECT_LT(node.in_barrier(), 4);
      int released = 0;
      for (const auto& event : events) {
        const auto* answer = std::get_if<Pmi1Node::Answer>(&event);
        if (answer == nullptr) continue;
        EXPECT_EQ(answer->line.find('\n'), answer->line.size() - 1) << answer->line;
        released += answer->line == "cmd=barrier_out rc=0\n" ? 1 : 0;
      }
      EXPECT_TRUE(released == 0 || released == 3) << "a barrier lets all of a node go";
      EXPECT_TRUE(released == 0 || before >= 2) << "and all have come";
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
