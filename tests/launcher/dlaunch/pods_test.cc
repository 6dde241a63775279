// Pods of one job, which all run the same dlaunch: here, and in two network namespaces with a cluster's DNS.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/free_port.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "tests/launcher/dlaunch/cluster_dns.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/join_line.h"
#include "tests/launcher/dlaunch/same_command.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using testing::LinkedNamespaces;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef\n";

// Pods of one job, here.
class Pods : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
    std::ofstream(folder_.path() + "/token") << kSecret;
  }
  std::unique_ptr<DlaunchProcess> Start(int index, int count, const vector<string>& rest,
                                        const string& wait = "30") const {
    vector<string> arguments = {"--token-file", folder_.path() + "/token", "--wait", wait, "--port-range", ports_};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return std::make_unique<DlaunchProcess>(
        arguments, DlaunchSurroundings{.environment = {"LWS_LEADER_ADDRESS=" + OwnAddresses()[0],
                                                       "LWS_WORKER_INDEX=" + std::to_string(index),
                                                       "LWS_GROUP_SIZE=" + std::to_string(count)}});
  }

  TemporaryFolder folder_;
  const string ports_ = [] {
    const int port = FindFreePort();  // which pods dial; the others are for agents and the program
    return std::to_string(port) + ":" + std::to_string(port + 7);
  }();
};

TEST_F(Pods, PodsAreNodesInTheOrderOfTheirIndices) {
  const vector<string> command = {"--", "sh", "-c", "echo $RANK of $WORLD_SIZE at $LWS_WORKER_INDEX"};
  const auto two = Start(2, 3, command);
  const auto one = Start(1, 3, command);
  const auto zero = Start(0, 3, command);
  EXPECT_EQ(zero->Wait(), 0) << zero->err();
  EXPECT_EQ(one->Wait(), 0) << one->err();
  EXPECT_EQ(two->Wait(), 0) << two->err();
  EXPECT_NE(zero->err().find("3 ranks on 3 pods"), string::npos) << zero->err();
  for (const char* line : {"[0] 0 of 3 at 0", "[1] 1 of 3 at 1", "[2] 2 of 3 at 2"}) {
    EXPECT_NE(zero->out().find(line), string::npos) << line << " in " << zero->out();
  }
}

TEST_F(Pods, ARestartedPodTakesItsPlaceAgain) {
  const auto old = Start(1, 3, {"true"});
  const auto zero = Start(0, 3, {"--", "sh", "-c", "echo rank $RANK"});
  ASSERT_TRUE(zero->WaitUntil([&] { return zero->err().find("2 of 3") != string::npos; })) << zero->err();
  const auto again = Start(1, 3, {"true"});
  // Before the last one comes, with whom the job starts.
  const auto joined_twice = [&] {
    const size_t first = zero->err().find(" joined: 2 of 3");
    return first != string::npos && zero->err().find(" joined: 2 of 3", first + 1) != string::npos;
  };
  ASSERT_TRUE(zero->WaitUntil(joined_twice)) << zero->err();
  const auto two = Start(2, 3, {"true"});
  EXPECT_EQ(zero->Wait(), 0) << zero->err();
  EXPECT_NE(zero->out().find("[2] rank 2"), string::npos) << zero->out();
  EXPECT_EQ(two->Wait(), 0) << two->err();
  EXPECT_NE(old->Wait(), -1);
  EXPECT_NE(again->Wait(), -1);
}

TEST_F(Pods, TheLeastNumberOfPodsIsEnoughWhenTheTimeIsOver) {
  const vector<string> command = {"--nnodes", "2:4", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE"};
  const auto three = Start(3, 4, command);
  const auto zero = Start(0, 4, command, "8");
  EXPECT_EQ(zero->Wait(), 0) << zero->err();
  EXPECT_EQ(three->Wait(), 0) << three->err();
  EXPECT_NE(zero->err().find("2 ranks on 2 pods"), string::npos) << zero->err();
  EXPECT_NE(zero->out().find("[1] 1 of 2"), string::npos) << zero->out();
}

TEST_F(Pods, AnUnusablePodIsLeftOutWhereTheOthersAreEnough) {
  const vector<string> command = {"--nnodes", "2:2", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE"};
  const auto zero = Start(0, 2, command);
  ASSERT_TRUE(zero->WaitUntil([&] { return zero->err().find("waits for the others") != string::npos; }));
  const string gate = FormatAddresses({OwnAddresses()[0]}, std::stoi(ports_));
  EXPECT_TRUE(
      OfferOldMachine(gate, string(kSecret, sizeof kSecret - 2), 1).starts_with("host relic has dlaunch 0.0.1"));
  const auto one = Start(1, 2, command);
  EXPECT_EQ(zero->Wait(), 0) << zero->err();
  EXPECT_EQ(one->Wait(), 0) << one->err();
  EXPECT_NE(zero->err().find("left out: host relic has dlaunch 0.0.1, here it is "), string::npos) << zero->err();
  EXPECT_NE(zero->err().find("2 ranks on 2 pods"), string::npos) << zero->err();
}

TEST_F(Pods, ADryRunNeitherWaitsNorJoins) {
  const auto real = Start(0, 2, {"--", "sh", "-c", "echo rank $RANK"});
  ASSERT_TRUE(real->WaitUntil([&] { return real->err().find("waits for the others") != string::npos; }));
  for (const char* option : {"--dry-run", "--explain"}) {
    for (const int index : {0, 1}) {
      const auto dry = Start(index, 2, {option, "true"});
      EXPECT_EQ(dry->Wait(), 2) << dry->err();
      EXPECT_NE(dry->err().find("pods that have yet to join"), string::npos) << dry->err();
    }
  }
  EXPECT_EQ(real->err().find("joined"), string::npos) << real->err();
  const auto one = Start(1, 2, {"true"});
  EXPECT_EQ(real->Wait(), 0) << real->err();
  EXPECT_EQ(one->Wait(), 0) << one->err();
}

TEST_F(Pods, PodsNeedASecretAndTheRightNumber) {
  const vector<string> variables = {"KUBERNETES_SERVICE_HOST=10.0.0.1", "JOB_COMPLETION_INDEX=0"};
  DlaunchProcess bare({"--nnodes", "2", "true"}, {.environment = variables});
  EXPECT_EQ(bare.Wait(), 2);
  EXPECT_NE(bare.err().find("volumeMounts"), string::npos) << bare.err();
  DlaunchProcess unknown({"true"}, {.environment = variables});
  EXPECT_EQ(unknown.Wait(), 2);
  EXPECT_NE(unknown.err().find("give --nnodes N, the Job's completions"), string::npos) << unknown.err();
  const auto beyond = Start(3, 3, {"true"});
  EXPECT_EQ(beyond->Wait(), 2);
  EXPECT_NE(beyond->err().find("this is pod 3, but --nnodes is 3"), string::npos) << beyond->err();
}

// How a kind of job calls its pods and what it sets in them. Beside it: deploy/kubernetes.
struct PodJob {
  const char* kind;
  std::array<const char*, 2> names;         // in the cluster's DNS
  std::array<vector<string>, 2> variables;  // besides those of every pod
  vector<string> options = {"--nnodes", "2"};
  friend std::ostream& operator<<(std::ostream& out, const PodJob& job) { return out << job.kind; }
};

const PodJob kPodJobs[] = {
    {.kind = "IndexedJob",
     .names = {"train-0.train.default.svc.cluster.local", "train-1.train.default.svc.cluster.local"},
     .variables = {{{"JOB_COMPLETION_INDEX=0"}, {"JOB_COMPLETION_INDEX=1"}}}},
    {.kind = "JobSet",
     .names = {"train-workers-0-0.train.default.svc.cluster.local",
               "train-workers-0-1.train.default.svc.cluster.local"},
     .variables = {{{"JOB_COMPLETION_INDEX=0"}, {"JOB_COMPLETION_INDEX=1"}}}},
    {.kind = "LeaderWorkerSet",
     .names = {"train-0.train.default.svc.cluster.local", "train-0-1.train.default.svc.cluster.local"},
     .variables = {{{"LWS_LEADER_ADDRESS=train-0.train.default", "LWS_WORKER_INDEX=0", "LWS_GROUP_SIZE=2"},
                    {"LWS_LEADER_ADDRESS=train-0.train.default", "LWS_WORKER_INDEX=1", "LWS_GROUP_SIZE=2"}}},
     .options = {}},
    {.kind = "PyTorchJob",
     .names = {"train-master-0.default.svc.cluster.local", "train-worker-0.default.svc.cluster.local"},
     .variables = {{{"PET_NNODES=2", "PET_NODE_RANK=0", "WORLD_SIZE=2", "RANK=0", "MASTER_ADDR=train-master-0"},
                    {"PET_NNODES=2", "PET_NODE_RANK=1", "WORLD_SIZE=2", "RANK=1", "MASTER_ADDR=train-master-0"}}},
     .options = {}},
};

class PodsInNamespaces : public ::testing::TestWithParam<PodJob> {};

// Neither an address nor a port is given: the name that pod 0 has in DNS, which comes after the other pod has begun to
// look for it, is all.
TEST_P(PodsInNamespaces, PodsTrainByTheirNamesInDns) {
  const auto namespaces = LinkedNamespaces::Create();
  if (!namespaces.ok()) GTEST_SKIP() << namespaces.status().message();
  const auto dns = ClusterDns::Start(**namespaces);
  ASSERT_TRUE(dns.ok()) << dns.status();
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/token") << kSecret;
  vector<string> arguments = {"--token-file", folder.path() + "/token", "--wait", "60"};
  const PodJob& job = GetParam();
  arguments.insert(arguments.end(), job.options.begin(), job.options.end());
  const vector<string> program = TrainingProgram();
  arguments.insert(arguments.end(), program.begin(), program.end());
  const PodSurroundings pods[] = {{namespaces->get(), 0, job.names[0]}, {namespaces->get(), 1, job.names[1]}};
  const auto surroundings = [&](size_t index) {
    DlaunchSurroundings all{.environment = job.variables[index], .enter = [&, index] { return pods[index].Enter(); }};
    all.environment.push_back("KUBERNETES_SERVICE_HOST=10.96.0.1");
    return all;
  };
  DlaunchProcess one(arguments, surroundings(1));
  ASSERT_TRUE(one.WaitUntil([&] { return one.err().find("is not known yet") != string::npos; })) << one.err();
  (*dns)->Add(job.names[0], LinkedNamespaces::AddressOf(0));
  DlaunchProcess zero(arguments, surroundings(0));
  EXPECT_EQ(zero.Wait(), 0) << zero.err() << one.err();
  EXPECT_EQ(one.Wait(), 0) << one.err();
  EXPECT_NE(zero.err().find("2 ranks on 2 pods"), string::npos) << zero.err();
  EXPECT_EQ(ProblemOfTraining(zero.out()), "");
  EXPECT_EQ(zero.WaitUntilGone(std::chrono::seconds(5)), "");
  EXPECT_EQ(one.WaitUntilGone(std::chrono::seconds(5)), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, PodsInNamespaces, ::testing::ValuesIn(kPodJobs),
                         [](const auto& param) { return string(param.param.kind); });

}  // namespace
}  // namespace cohort::launcher
