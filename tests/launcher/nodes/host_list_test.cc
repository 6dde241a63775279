// Host lists: Slurm's brackets, slots, what is refused; and the order of names.
#include "cohort/launcher/nodes/host_list.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/nodes/host_file.h"
#include "cohort/launcher/spawn/ssh_command.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

vector<string> HostsAndSlots(const string& text) {
  const auto hosts = ParseHostList(text, "--hosts");
  EXPECT_TRUE(hosts.ok()) << hosts.status();
  vector<string> names;
  for (const HostEntry& entry : hosts.value_or(vector<HostEntry>())) {
    names.push_back(entry.host + (entry.slots ? "=" + std::to_string(*entry.slots) : ""));
  }
  return names;
}

string Refusal(const string& text) {
  const auto hosts = ParseHostList(text, "--hosts");
  EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return string(hosts.status().message());
}

TEST(HostList, ReadsListsOfPeopleAndOfSlurm) {
  EXPECT_EQ(HostsAndSlots("a"), vector<string>{"a"});
  EXPECT_EQ(HostsAndSlots("b, a:8"), (vector<string>{"b", "a=8"}));
  EXPECT_EQ(HostsAndSlots("node[8-11,3]:2"), (vector<string>{"node8=2", "node9=2", "node10=2", "node11=2", "node3=2"}));
  EXPECT_EQ(HostsAndSlots("n[01-03]"), (vector<string>{"n01", "n02", "n03"}));
  EXPECT_EQ(HostsAndSlots("n[098-101]"), (vector<string>{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(HostsAndSlots("r[1-2]c[0,5]-ib,x"), (vector<string>{"r1c0-ib", "r1c5-ib", "r2c0-ib", "r2c5-ib", "x"}));
  EXPECT_EQ(HostsAndSlots("[fd00::1]:2,fd00::2,10.0.0.1:3"), (vector<string>{"fd00::1=2", "fd00::2", "10.0.0.1=3"}));
  EXPECT_EQ(HostsAndSlots("a\nb\tc , d"), (vector<string>{"a", "b", "c", "d"}))
      << "as $(scontrol show hostnames) has them";
  EXPECT_EQ(HostsAndSlots("a,b,a,a:3,n1*2"), (vector<string>{"a=5", "b", "n1=2"})) << "a host that is named again";
  EXPECT_EQ(HostsAndSlots("ann@h1,ann@[fd00::1]:2"), (vector<string>{"ann@h1", "ann@fd00::1=2"}));
}

TEST(HostList, RefusesWithTheReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no hosts"},          {"a,,b", "without a name"},     {"-oProxyCommand=x", "could be taken for an option"},
      {"a;rm", "';' is in it"},  {"a;b", "';' is in it"},        {"n[3-1]", "list of ranges"},
      {"n[1", "not closed"},     {"n1]", "don't match"},         {"n[[1]]", "don't match"},
      {"n[]", "ranges"},         {"n[0-99999]", "more than"},    {"n[0-999]m[0-999]", "more than"},
      {"a:1024,a", "more than"}, {"a:0", "number of ranks"},     {"a:1025", "number of ranks"},
      {"a:x", "number"},         {"n[0-99999999999]", "ranges"}, {"-x@a", "can't be a user"},
      {"a@-b", "option"},        {"n[1-2]:", "number of ranks"}, {"@a", "can't be a user"},
      {"a`id`", "can't be"},     {"$(id)", "can't be a host"},   {"n[1:2]", "ranges"},
  };
  for (const auto& [text, words] : cases) {
    const string refusal = Refusal(text);
    EXPECT_NE(refusal.find(words), string::npos) << text << ": " << refusal;
    EXPECT_EQ(refusal.find("--hosts: "), 0u) << refusal;
  }
  EXPECT_NE(Refusal(string(300, 'a')).find("300 characters"), string::npos);
}

TEST(HostList, AnyBytesAreReadOrRefused) {
  std::mt19937 random(11);
  const string alphabet = "ab19[]-,:@. %;=*\n\\'\"";
  for (int trial = 0; trial < 20000; ++trial) {
    string text;
    for (size_t n = random() % 24; n > 0; --n) text += alphabet[random() % alphabet.size()];
    const auto file = ParseHostFile(text, "x");
    const auto of_file = file.ok() ? absl::StatusOr<vector<HostEntry>>(file->hosts) : file.status();
    for (const auto& parsed : {ParseHostList(text, "x"), of_file}) {
      if (!parsed.ok()) continue;
      EXPECT_FALSE(parsed->empty()) << text;
      for (const HostEntry& entry : *parsed) {
        EXPECT_FALSE(entry.host.empty() || entry.host[0] == '-') << text;
        EXPECT_EQ(entry.host.find_first_of("[]; \n\\'\","), string::npos) << text;
      }
    }
  }
}

TEST(NaturalLess, OrdersNumbersAsNumbers) {
  vector<string> names = {"host-10", "host-9", "host-9a", "a2b10", "a2b9", "a10", "a", "host-09"};
  std::sort(names.begin(), names.end(), NaturalLess);
  EXPECT_EQ(names, (vector<string>{"a", "a2b9", "a2b10", "a10", "host-09", "host-9", "host-9a", "host-10"}));
}

TEST(NaturalLess, NaturalOrderIsStrict) {
  std::mt19937 random(3);
  const auto word = [&] {
    string text;
    for (size_t n = random() % 5; n > 0; --n) text += "a019"[random() % 4];
    return text;
  };
  for (int trial = 0; trial < 20000; ++trial) {
    const string a = word(), b = word(), c = word();
    EXPECT_EQ(NaturalLess(a, b) || NaturalLess(b, a), a != b) << a << " " << b;
    EXPECT_FALSE(NaturalLess(a, b) && NaturalLess(b, a)) << a << " " << b;
    EXPECT_TRUE(!NaturalLess(a, b) || !NaturalLess(b, c) || NaturalLess(a, c)) << a << " " << b << " " << c;
  }
}

TEST(Inventory, AnInventoryHasCoresAndNumaNodesOrNeither) {
  v1::NodeInventory inventory;
  inventory.set_version(COHORT_VERSION);
  inventory.set_cpus("0-3");
  inventory.add_cores("0,2");
  inventory.add_cores("1,3");
  inventory.add_numa_nodes("0-3");
  using Groups = vector<vector<int>>;
  EXPECT_EQ(ResourcesOf(inventory, Options(), "a")->cores, (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(ResourcesOf(inventory, Options(), "a")->numa_nodes, (Groups{{0, 1, 2, 3}}));
  for (const char* wrong : {"0-9", "3", "x", ""}) {  // a CPU too many, one twice, no list, none
    v1::NodeInventory other = inventory;
    other.add_cores(wrong);
    EXPECT_TRUE(ResourcesOf(other, Options(), "a")->cores.empty()) << wrong;
  }
}

// Before anything is started there.
TEST(Inventory, AHostNeedsTheNamedNetwork) {
  v1::NodeInventory inventory;
  inventory.set_version(COHORT_VERSION);
  inventory.set_cpus("0");
  inventory.add_networks("lo 127.0.0.1");
  inventory.add_networks("eth0 10.1.2.3");
  inventory.add_networks("broken");
  Options options;
  for (const char* const there : {"", "lo", "eth0", "10.1.0.0/16"}) {
    options.interface = there;
    EXPECT_TRUE(ResourcesOf(inventory, options, "a").ok()) << there;
  }
  for (const char* const not_there : {"nope", "eth", "10.2.0.0/16", "10.1.0.0/99"}) {
    options.interface = not_there;
    const string why(ResourcesOf(inventory, options, "a").status().message());
    EXPECT_EQ(why.find("has no address on --iface " + string(not_there) + "; it has lo (127.0.0.1), eth0 (10.1.2.3)"),
              0)
        << why;
  }
}

TEST(Inventory, AnInventoryIsFoundAmongNoise) {
  v1::NodeInventory inventory;
  inventory.set_version("9");
  inventory.set_host("h\xff\n");
  const string line = FormatInventory(inventory);
  for (const string& text : {line, "Welcome!" + line, "\001\n" + line + "bye", FormatInventory({}) + line}) {
    const auto found = ParseInventory(text);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->version(), "9");
    EXPECT_EQ(found->host(), "h\\xff\\x0a");  // it comes from another machine: printable from here on
  }
  EXPECT_EQ(ParseInventory("Welcome!\n").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ParseInventory(line.substr(0, line.size() - 2)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseInventory("\ncohort-inventory zz\n").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SshCommand, QuotesForARemoteShell) {
  for (const string& word :
       {string("a b"), string("it's"), string("$(id)"), string(""), string("a;b"), string("\\n")}) {
    const auto results = RunCommands({{"sh", "-c", "printf %s " + ShellQuote(word)}}, {});
    EXPECT_EQ(results[0].output, word);
  }
  Options options;
  options.ssh_command = "ssh -p 2222";
  const vector<string> command = SshCommand(options, "/opt/my tools/dlaunch", "ann@h1", {"agent", "--node=3"});
  EXPECT_EQ(vector<string>(command.begin(), command.begin() + 3), (vector<string>{"ssh", "-p", "2222"}));
  EXPECT_EQ(command[command.size() - 2], "ann@h1");
  EXPECT_EQ(command.back(), "exec '/opt/my tools/dlaunch' agent --node=3");
}

// Questions must be refused soon; a host that has answered them may be busy when its agent is started.
TEST(SshCommand, GivesUpEarlierOnQuestionsThanOnAgents) {
  const auto holds = [](const vector<string>& arguments, const string& option) {
    const vector<string> command = SshCommand({}, "/dlaunch", "h1", arguments);
    return std::find(command.begin(), command.end(), option) != command.end();
  };
  EXPECT_TRUE(holds({"agent", "--inventory"}, "ConnectTimeout=4"));
  EXPECT_TRUE(holds({"agent", "--node=3"}, "ConnectTimeout=10"));
  Options options;
  options.ssh_command = "ssh -o ConnectTimeout=15";
  const vector<string> command = SshCommand(options, "/dlaunch", "h1", {"agent", "--inventory"});
  EXPECT_LT(std::find(command.begin(), command.end(), "ConnectTimeout=15"),
            std::find(command.begin(), command.end(), "ConnectTimeout=4"))
      << "ssh takes the first";
}

TEST(RunCommands, RunsManyAndReportsEach) {
  vector<vector<string>> commands;
  for (int i = 0; i < 100; ++i) {
    commands.push_back({"sh", "-c", "echo out" + std::to_string(i) + "; echo err >&2; exit " + std::to_string(i % 3)});
  }
  const auto results = RunCommands(commands, {.at_once = 8});
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(results[i].ended);
    EXPECT_EQ(results[i].output, "out" + std::to_string(i) + "\n");
    EXPECT_EQ(results[i].error, "err\n");
    EXPECT_EQ(WEXITSTATUS(results[i].wait_status), i % 3);
  }
}

TEST(RunCommands, EndsCommandsThatTakeTooLongOrAreCancelled) {
  const auto late = RunCommands({{"sleep", "60"}, {"sh", "-c", "exec >&- 2>&-; sleep 60"}, {"/no/such/program"}},
                                {.limit = std::chrono::milliseconds(200)});
  EXPECT_FALSE(late[0].ended);
  EXPECT_FALSE(late[1].ended);
  EXPECT_TRUE(late[2].ended);
  EXPECT_EQ(WEXITSTATUS(late[2].wait_status), 127);
  int told = 0;
  const auto cancelled =
      RunCommands({{"sleep", "60"}, {"true"}, {"sleep", "60"}}, {.on_end = [&](size_t index, const auto&) {
                    ++told;
                    return index != 1;
                  }});
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(cancelled[1].ended);
  EXPECT_FALSE(cancelled[0].ended || cancelled[2].ended);
  EXPECT_TRUE(cancelled[0].cancelled_after && cancelled[2].cancelled_after);
  EXPECT_FALSE(cancelled[1].cancelled_after || late[0].cancelled_after);
}

TEST(RunCommands, ReportsCommandsThatEndBeforeItMayCancel) {
  std::vector<size_t> told;
  RunCommands({{"sleep", "60"}, {"true"}, {"sleep", "0.1"}}, {.at_once = 2,
                                                              .on_end =
                                                                  [&](size_t index, const auto&) {
                                                                    told.push_back(index);
                                                                    return false;
                                                                  },
                                                              .cancels_after = std::chrono::seconds(2)});
  EXPECT_EQ(told, (std::vector<size_t>{1, 2}));
}

}  // namespace
}  // namespace cohort::launcher
