// The contents of schedulers' variables, and the way to their nodes. Variables as captured from the schedulers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_files.h"
#include "cohort/launcher/nodes/node_order.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/nodes/slurm.h"
#include "cohort/launcher/nodes/surroundings/name_list.h"
#include "cohort/launcher/nodes/surroundings/task_counts.h"
#include "cohort/launcher/spawn/blaunch_command.h"
#include "cohort/launcher/spawn/srun_command.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<SlurmNodes> ReadSlurm(const std::map<string, string>& variables) {
  return ReadSlurmVariables([&](const char* name) -> std::optional<string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

vector<string> Names(const vector<HostEntry>& hosts) {
  vector<string> names;
  for (const HostEntry& entry : hosts) names.push_back(entry.host);
  return names;
}

TEST(Slurm, ABatchScriptHasTheAllocation) {
  const auto nodes = ReadSlurm({{"SLURM_JOB_ID", "1"},
                                {"SLURM_JOB_NODELIST", "gpu[08-10],login1"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_TASKS_PER_NODE", "1(x2)"}});
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_THAT(Names(nodes->hosts), ElementsAre("gpu08", "gpu09", "gpu10", "login1"));
  EXPECT_FALSE(nodes->elsewhere);
}

TEST(Slurm, AStepOfOneTaskHasTheAllocation) {  // salloc's interactive step, srun --pty bash
  const auto nodes = ReadSlurm({{"SLURM_JOB_NODELIST", "v[0-1]"},
                                {"SLURM_STEP_NODELIST", "v0"},
                                {"SLURM_STEP_NUM_TASKS", "1"},
                                {"SLURM_PROCID", "0"}});
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_THAT(Names(nodes->hosts), ElementsAre("v0", "v1"));
}

TEST(Slurm, TheFirstTaskOfAStepOnSeveralNodesRunsTheJob) {
  for (const bool first : {true, false}) {
    const auto nodes = ReadSlurm({{"SLURM_JOB_NODELIST", "v[0-7]"},
                                  {"SLURM_STEP_NODELIST", "v[2-3]"},
                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                  {"SLURM_PROCID", first ? "0" : "1"}});
    ASSERT_TRUE(nodes.ok()) << nodes.status();
    EXPECT_THAT(Names(nodes->hosts), ElementsAre("v2", "v3"));
    EXPECT_EQ(nodes->elsewhere, !first);
  }
}

TEST(Slurm, AMissingNodeListIsNamedWithTheWayOut) {
  for (const char* const list : std::initializer_list<const char*>{"", nullptr}) {
    auto variables = std::map<string, string>{{"SLURM_JOB_ID", "1"}};
    if (list != nullptr) variables["SLURM_JOB_NODELIST"] = list;
    const auto nodes = ReadSlurm(variables);
    ASSERT_FALSE(nodes.ok());
    EXPECT_THAT(string(nodes.status().message()), HasSubstr("SLURM_JOB_NODELIST is not set"));
    EXPECT_THAT(string(nodes.status().message()), HasSubstr("--launcher local"));
  }
}

TEST(Slurm, MoreTasksThanNodesAreRefusedWithTheCommand) {
  const auto nodes = ReadSlurm({{"SLURM_STEP_NODELIST", "v[0-1]"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  ASSERT_FALSE(nodes.ok());
  EXPECT_THAT(string(nodes.status().message()), HasSubstr("srun --wait=0 -N 2 --ntasks-per-node=1 dlaunch"));
  EXPECT_FALSE(ReadSlurm({{"SLURM_JOB_ID", "1"}}).ok()) << "no list";
  EXPECT_FALSE(ReadSlurm({{"SLURM_JOB_NODELIST", "v[0-"}}).ok());
}

// All tasks would take themselves for another than the first, and end.
TEST(Slurm, TaskNumbersThatAreNoneAreRefusedByName) {
  std::map<string, string> variables = {
      {"SLURM_STEP_NODELIST", "v[0-1]"}, {"SLURM_JOB_NODELIST", "v[0-1]"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  for (const char* task : {"2", "99", "-1", "abc", "", "0 ", "00x", "99999999999999999999"}) {
    variables["SLURM_PROCID"] = task;
    const auto nodes = ReadSlurm(variables);
    ASSERT_FALSE(nodes.ok()) << task;
    EXPECT_TRUE(absl::IsInvalidArgument(nodes.status())) << nodes.status();
    EXPECT_THAT(string(nodes.status().message()), HasSubstr("SLURM_PROCID is '" + string(task).substr(0, 20)));
    EXPECT_THAT(string(nodes.status().message()), HasSubstr("from 0 to 1"));
  }
  variables["SLURM_PROCID"] = "0";
  EXPECT_TRUE(ReadSlurm(variables).ok());
  for (const char* tasks : {"-5", "", "0", "two"}) {
    variables["SLURM_STEP_NUM_TASKS"] = tasks;
    const auto nodes = ReadSlurm(variables);
    ASSERT_FALSE(nodes.ok()) << tasks;
    EXPECT_THAT(string(nodes.status().message()), HasSubstr("SLURM_STEP_NUM_TASKS is '" + string(tasks) + "'"));
  }
}

TEST(Slurm, AShellOfAPtyHasTheAllocationAndItsTasks) {
  std::map<string, string> variables = {{"SLURM_JOB_NODELIST", "v[0-1]"}, {"SLURM_STEP_NODELIST", "v[0-1]"},
                                        {"SLURM_STEP_NUM_TASKS", "6"},    {"SLURM_NTASKS", "6"},
                                        {"SLURM_TASKS_PER_NODE", "4,2"},  {"SLURM_PROCID", "0"}};
  EXPECT_FALSE(ReadSlurm(variables).ok()) << "six dlaunches";
  for (const auto& [name, value] : std::map<string, string>{{"SLURM_PTY_PORT", "4711"},
                                                            {"SLURM_PTY_WIN_COL", "80"},
                                                            {"SLURM_STEP_ID", "interactive"},
                                                            {"SLURM_STEPID", "4294967290"}}) {
    variables[name] = value;
    const auto nodes = ReadSlurm(variables);
    ASSERT_TRUE(nodes.ok()) << name << nodes.status();
    EXPECT_EQ(nodes->hosts, (vector<HostEntry>{{"v0", 4}, {"v1", 2}})) << name;
    EXPECT_FALSE(nodes->step || nodes->elsewhere) << name;
    variables["SLURM_PROCID"] = "5";
    EXPECT_TRUE(ReadSlurm(variables)->elsewhere) << "has no terminal, and ends: " << name;
    variables["SLURM_PROCID"] = "0";
    variables.erase(name);
  }
  variables["SLURM_STEP_ID"] = "4";
  EXPECT_FALSE(ReadSlurm(variables).ok()) << "a usual step";
}

TEST(Slurm, TasksAreThoseOfTheRequest) {
  const auto slots = [](std::map<string, string> variables) {
    variables["SLURM_JOB_NODELIST"] = "v[0-2]";
    vector<int> tasks;
    const auto nodes = ReadSlurm(variables);
    if (nodes.ok()) {
      for (const HostEntry& host : nodes->hosts) tasks.push_back(host.slots.value_or(0));
    }
    return tasks;
  };
  EXPECT_THAT(slots({{"SLURM_NTASKS", "10"}, {"SLURM_TASKS_PER_NODE", "4(x2),2"}}), ElementsAre(4, 4, 2));
  EXPECT_THAT(slots({{"SLURM_NTASKS_PER_NODE", "4"}}), ElementsAre(4, 4, 4));
  EXPECT_THAT(slots({{"SLURM_NTASKS", "8"}}), ElementsAre(3, 3, 2));
  EXPECT_THAT(slots({{"SLURM_NTASKS", "2"}}), ElementsAre(0, 0, 0)) << "fewer than nodes";
  EXPECT_THAT(slots({{"SLURM_TASKS_PER_NODE", "48(x3)"}}), ElementsAre(0, 0, 0)) << "CPUs";
  EXPECT_THAT(slots({{"SLURM_NTASKS", "1"}, {"SLURM_TASKS_PER_NODE", "1"}}), ElementsAre(0, 0, 0)) << "of a step";
  EXPECT_THAT(slots({{"SLURM_NTASKS", "many"}}), ElementsAre()) << "refused";
  EXPECT_THAT(slots({{"SLURM_NTASKS", "6"}, {"SLURM_TASKS_PER_NODE", "2(x3"}}), ElementsAre()) << "refused";
}

TEST(TaskCounts, TaskCountsAreReadAsSlurmWritesThem) {
  EXPECT_THAT(*ParseTaskCounts("4", "T"), ElementsAre(4));
  EXPECT_THAT(*ParseTaskCounts("4(x2),2", "T"), ElementsAre(4, 4, 2));
  for (const char* bad : {"", "0", "4(x0)", "4(x2", "4x2", "4,", ",4", "-1", "4(x99999999)", "4(x2)3", "a"}) {
    const auto refused = ParseTaskCounts(bad, "TASKS");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(string(refused.status().message()).find("TASKS is '"), 0u) << refused.status();
  }
}

TEST(Slurm, TheWaitOfSrunIsReadFromItsConfiguration) {
  EXPECT_EQ(WaitTimeIn("UsePam                  = No\nWaitTime                = 30 sec\nX11Parameters = (null)\n"),
            "30");
  EXPECT_EQ(WaitTimeIn("BatchStartWaitTime      = 10 sec\n"), "");
  EXPECT_EQ(WaitTimeIn(""), "");
}

TEST(Slurm, TheStepOfAnAgentTakesAllResourcesOfItsNode) {
  const vector<string> command = SrunCommand(Options(), "/opt/dlaunch", "v1", {"agent", "--node=1"});
  EXPECT_EQ(command[0], "env");
  for (const char* variable :
       {"SLURM_MEM_PER_CPU", "SLURM_NTASKS_PER_NODE", "SLURM_CPU_BIND", "SLURM_GPUS", "SLURM_GPUS_PER_TASK"}) {
    const auto at = std::find(command.begin(), command.end(), variable);
    ASSERT_NE(at, command.end()) << variable;
    EXPECT_EQ(*(at - 1), "-u");
  }
  for (const char* word : {"--overlap", "--nodelist=v1", "--mem=0", "--unbuffered", "--cpu-bind=none"}) {
    EXPECT_NE(std::find(command.begin(), command.end(), word), command.end()) << word;
  }
  EXPECT_EQ(vector<string>(command.end() - 3, command.end()), (vector<string>{"/opt/dlaunch", "agent", "--node=1"}));
}

TEST(Lsf, BlaunchTakesTheHostFirst) {
  Options options;
  options.agent_path = "/else/dlaunch";
  EXPECT_THAT(BlaunchCommand(options, "/opt/dlaunch", "h1", {"agent"}),
              ElementsAre("blaunch", "h1", "/else/dlaunch", "agent"));
}

TEST(Lsf, HostsAndSlotsAreReadInPairs) {
  const auto hosts = ParseHostsAndSlots("h1 4  h2 2", "LSB_MCPU_HOSTS");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_EQ(*hosts, (vector<HostEntry>{{"h1", 4}, {"h2", 2}}));
  for (const char* bad : {"", "h1", "h1 4 h2", "h1 0", "4 h1", "h1 -1"}) {
    EXPECT_FALSE(ParseHostsAndSlots(bad, "LSB_MCPU_HOSTS").ok()) << bad;
  }
}

TEST(Names, NamesAreReadFromListsOfAllForms) {
  EXPECT_THAT(NamesIn("a,b;c d\ne"), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(NamesIn("[\"algo-1\", \"algo-2\"]"), ElementsAre("algo-1", "algo-2"));
  EXPECT_THAT(NamesIn("a:29500,fd00::1,[fd00::2]"), ElementsAre("a", "fd00::1", "fd00::2"));
  EXPECT_THAT(NamesIn(""), ElementsAre());
}

TEST(NodeFile, KeepsEachHostOnce) {
  const auto hosts = ParseNodeFile("b\nb\n\na \nb\na\nc", "PBS_NODEFILE");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(Names(*hosts), ElementsAre("b", "a", "c"));
  EXPECT_FALSE(hosts->front().slots);
  for (const char* bad : {"", "\n\n", "a b\n", "-oProxy\n", "a\n\x01\n"}) {
    const auto refused = ParseNodeFile(bad, "PBS_NODEFILE");
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(string(refused.status().message()), HasSubstr("PBS_NODEFILE"));
  }
}

TEST(PortableEnvironment, KeepsPortableAndNamedVariables) {
  const vector<string> shell = {
      "PATH=/bin",   "HOME=/root",      "XDG_A=1",         "XDG_B=2", "RANK=4", "SLURM_PROCID=1",
      "SLURM_FOO=x", "TMPDIR=/scratch", "PET_NODE_RANK=0", "odd",     "=C"};
  EXPECT_THAT(PortableEnvironment(shell, {}), ElementsAre("PATH=/bin"));
  EXPECT_THAT(PortableEnvironment(shell, {"HOME", "XDG_*", "RANK", "SLURM_*"}),
              ElementsAre("PATH=/bin", "HOME=/root", "XDG_A=1", "XDG_B=2", "SLURM_FOO=x"));
}

TEST(Launcher, TheLauncherOptionNamesTheSourceOrIsRefused) {
  Options options;
  options.launcher = "local";
  options.simulate_nodes = 2;
  const auto local = FindNodes(options);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->source, "this machine");
  options.launcher = "ssh";
  EXPECT_THAT(string(FindNodes(options).status().message()), HasSubstr("neither --hosts nor --hostfile"));
  options.launcher = "rsh";
  EXPECT_THAT(string(FindNodes(options).status().message()),
              HasSubstr("slurm, pbs, lsf, gridengine, oar, cobalt, kubernetes, members, hostfile, join, local"));
  options.launcher = "";
  EXPECT_THAT(ExplainSources(ListSources(options)), HasSubstr("* simulated   --simulate-nodes 2\n"));
}

TEST(RankOrder, AListMayNameMoreAndLeaveDomainsOut) {
  std::vector<NodeResources> nodes(3);
  nodes[0].name = "a";
  nodes[1].name = "b.cluster";
  nodes[2].name = "c";
  const auto names = [&] { return nodes[0].name + " " + nodes[1].name + " " + nodes[2].name; };
  EXPECT_TRUE(OrderByList({{"c", {}}, {"x", {}}, {"b", {}}, {"a.cluster", {}}}, "--rank-order file:f", &nodes).ok());
  EXPECT_EQ(names(), "c b.cluster a");
  vector<NodeResources> addresses(1);
  addresses[0].name = "10.0.0.7";
  EXPECT_FALSE(OrderByList({{"10.0.0.8", {}}}, "f", &addresses).ok());
  const absl::Status lacking = OrderByList({{"c", {}}, {"a", {}}}, "--rank-order file:f", &nodes);
  EXPECT_EQ(lacking.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(lacking.message()).find("--rank-order file:f lacks the node b.cluster"), 0u) << lacking;
  EXPECT_EQ(names(), "c b.cluster a") << "as it was";
}

TEST(RankOrder, AFileOrdersTheNodesOfAnySource) {
  const std::string path = (std::filesystem::temp_directory_path() / ("order-" + std::to_string(::getpid()))).string();
  std::ofstream(path) << "# the switch first\nnode2\nnode[0-1]\n";
  Options options;
  options.simulate_nodes = 3;
  options.rank_order = RankOrder::kFile;
  options.rank_order_file = path;
  const auto found = FindNodes(options);
  std::filesystem::remove(path);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->nodes[0].name + found->nodes[1].name + found->nodes[2].name, "node2node0node1");
}

TEST(RankOrder, NaturalOrderSortsByName) {
  Options options;
  options.simulate_nodes = 12;
  options.rank_order = RankOrder::kNatural;
  const auto found = FindNodes(options);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->nodes[2].name, "node2");
  EXPECT_EQ(found->nodes[10].name, "node10");
}

}  // namespace
}  // namespace cohort::launcher
