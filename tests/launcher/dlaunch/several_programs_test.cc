// Several programs in one job, typed as for mpirun or in a file as for srun: one world, one report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using nlohmann::json;
using std::string;
using ::testing::HasSubstr;
using ::testing::Not;

class SeveralPrograms : public ::testing::Test {
 protected:
  string Add(const string& name, const string& text) { return folder_.AddScript(name, "#!/bin/sh\n" + text + "\n"); }
  string AddFile(const string& text) {
    const string path = folder_.path() + "/programs";
    std::ofstream(path) << text;
    return path;
  }

  TemporaryFolder folder_;
};

std::vector<string> SortedLines(const string& text) {
  std::vector<string> lines;
  std::istringstream in(text);
  for (string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(SeveralPrograms, ShareOneWorldOnSeveralNodes) {
  const string says = "echo $1 $2 $RANK of $WORLD_SIZE on $GROUP_RANK $ALL $OWN";
  const string server = Add("server", says), client = Add("client", says);
  DlaunchProcess job({"--simulate-nodes",
                      "2",
                      "--nproc-per-node",
                      "2",
                      "--env",
                      "ALL=1",
                      "--env",
                      "OWN=no",
                      "-n",
                      "1",
                      server,
                      "s",
                      "-n",
                      ":",
                      "-np",
                      "3",
                      "--env",
                      "OWN=yes",
                      client,
                      "c"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(SortedLines(job.out()), (std::vector<string>{"[0] s -n 0 of 4 on 0 1 no", "[1] c 1 of 4 on 0 1 yes",
                                                         "[2] c 2 of 4 on 1 1 yes", "[3] c 3 of 4 on 1 1 yes"}))
      << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 0: " + server + "; ranks 1-3: " + client));
}

TEST_F(SeveralPrograms, OneWithoutACountGetsTheRanksThatAreLeft) {
  DlaunchProcess job({"--simulate-nodes", "2", "--nproc-per-node", "2", "-n", "1", "echo", "a", ":", "echo", "b"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(SortedLines(job.out()), (std::vector<string>{"[0] a", "[1] b", "[2] b", "[3] b"}));
}

TEST_F(SeveralPrograms, AFileSaysWhatEachRankRuns) {
  const string file = AddFile("# srun's example\n4-6   echo plain\n1,7   echo  task:%t '%t'\n0,2-3 echo  offset:%o\n");
  DlaunchProcess job({"--multi-prog", file});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(SortedLines(job.out()),
            (std::vector<string>{"[0] offset:0", "[1] task:1 %t", "[2] offset:1", "[3] offset:2", "[4] plain",
                                 "[5] plain", "[6] plain", "[7] task:7 %t"}))
      << job.err();
  DlaunchProcess dry({"-n", "3", "--dry-run", "--multi-prog", AddFile("1 true\n* echo\n")});
  EXPECT_EQ(dry.Wait(), 0) << dry.err();
  EXPECT_THAT(dry.out(), HasSubstr("ranks 0 and 2: "));
}

// A rank asks by PMI-1 which program it runs.
TEST_F(SeveralPrograms, MpiIsToldThePlaceOfItsProgram) {
  const string asks =
      "import os\n"
      "fd = int(os.environ['PMI_FD'])\n"
      "def ask(line):\n"
      "    os.write(fd, line + b'\\n')\n"
      "    return os.read(fd, 4096).decode().strip()\n"
      "ask(b'cmd=init pmi_version=1 pmi_subversion=1')\n"
      "print(ask(b'cmd=get_appnum'))\n"
      "ask(b'cmd=finalize')\n";
  DlaunchProcess job({"--mpi", "pmi1", "-n", "1", "python3", "-c", asks, ":", "-n", "2", "python3", "-c", asks});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(SortedLines(job.out()),
            (std::vector<string>{"[0] cmd=appnum appnum=0", "[1] cmd=appnum appnum=1", "[2] cmd=appnum appnum=1"}));
}

TEST_F(SeveralPrograms, AFailureNamesTheProgram) {
  const string server = Add("server", "sleep 1000"), client = Add("client", "[ $RANK = 2 ] && exit 7; sleep 1000");
  const string logs = folder_.path() + "/logs";
  DlaunchProcess job({"--log-dir", logs, "-n", "1", server, ":", "-n", "2", client, "--fast"});
  EXPECT_EQ(job.Wait(), 7);
  EXPECT_THAT(job.err(), HasSubstr("rank 2 (client, "));
  EXPECT_THAT(job.err(), HasSubstr("rank 0 (server, "));
  std::ifstream file(logs + "/report.json");
  const json report = json::parse(file);
  EXPECT_EQ(report["command"], json({server, ":", client, "--fast"}));
  EXPECT_EQ(report["programs"][1]["ranks"], json::array({json({1, 2})}));
  EXPECT_EQ(report["programs"][1]["command"], json({client, "--fast"}));
  EXPECT_EQ(report["ranks"][0]["program"], "server");
  EXPECT_EQ(report["ranks"][2]["program"], "client");
}

TEST_F(SeveralPrograms, StatusListsThem) {
  const string server = Add("server", "echo up; sleep 1000"), client = Add("client", "sleep 1000");
  DlaunchProcess job({"-n", "1", server, ":", "-n", "2", client, "--fast"});
  ASSERT_TRUE(job.WaitForOutput("[0] up")) << job.err();
  const size_t id = job.err().find("job-");
  ASSERT_NE(id, string::npos) << job.err();
  DlaunchProcess status({"status", job.err().substr(id, 20)});
  EXPECT_EQ(status.Wait(), 0) << status.err();
  EXPECT_THAT(status.out(), HasSubstr("rank 0: " + server + "\n"));
  EXPECT_THAT(status.out(), HasSubstr("ranks 1-2: " + client + " --fast\n"));
}

TEST_F(SeveralPrograms, AJobThatCannotWorkIsRefusedBeforeAnythingStarts) {
  const string says = Add("says", "echo started"), file = folder_.path() + "/programs";
  const string nowhere = folder_.path() + "/nowhere";
  struct Case {
    std::vector<string> arguments;
    int status;
    std::vector<string> words;
    string text = {};  // of the file
  };
  const Case cases[] = {
      {{"-n", "1", says, ":", "-n", "1", nowhere}, 127, {"program 2: there is no program " + nowhere}},
      {{"-n", "1", says, ":", "-n", "1", "statsu"}, 127, {"program 2: there is no program 'statsu'"}},
      {{"-n", "2", "expr", "abc", ":", "abc"}, 127, {"program 2: there is no program 'abc'", "dlaunch [options] -- p"}},
      {{"--nproc-per-node", "2", "-n", "1", says, ":", "-n", "3", says},
       2,
       {"the programs have 4 ranks together: the nodes take 2 ranks"}},
      {{"-H", "localhost:2", "-n", "1", says, ":", "-n", "3", says},
       2,
       {"the programs have 4 ranks together: the nodes take 2 ranks"}},
      {{"--simulate-nodes", "2", "--nnodes", "2", "-n", "1", says},
       2,
       {"-n 1: 1 of 2 nodes would have no rank; use --nnodes 1"}},
      {{"--simulate-nodes", "2", "--nnodes", "2", "--multi-prog", file},
       2,
       {file + " names 1 rank: 1 of 2 nodes would have no rank"},
       "0 " + says + "\n"},
      {{"--nproc-per-node", "2", "--multi-prog", file}, 2, {"the job has 2 ranks", "give -n 4"}, "0-3 " + says + "\n"},
      {{"-n", "2", says, ":", says, ":", says}, 2, {"program 2 (", "program 3 (", "have no -n"}},
      {{"--nproc-per-node", "2", "-n", "2", says, ":", says}, 2, {"has no -n", "raise --nproc-per-node"}},
      {{"-n", "2", says, ":"}, 2, {"program 2 is missing"}},
      {{"-n", "1", says, ":", "-n", "1", "--stdin", "none", says}, 2, {"program 2: --stdin is for the whole job"}},
      {{"--multi-prog", nowhere}, 2, {"--multi-prog", nowhere}},
      {{"--multi-prog", file}, 2, {"no line names a program for rank 1 of 3 ranks", "*"}, "0,2 " + says + "\n"},
      {{"-n", "2", "--multi-prog", file}, 2, {"the job has 2 ranks", "give -n 3"}, "0-2 " + says + "\n"},
      {{"--multi-prog", file},
       2,
       {"line 2 of " + file, "rank 1 has its program"},
       "0-1 " + says + "\n1 " + says + "\n"},
      {{"--multi-prog", file},
       127,
       {"line 2 of " + file + ": there is no program"},
       "0 " + says + "\n1 " + nowhere + "\n"},
  };
  for (const Case& each : cases) {
    if (!each.text.empty()) AddFile(each.text);
    DlaunchProcess job(each.arguments);
    EXPECT_EQ(job.Wait(), each.status) << ::testing::PrintToString(each.arguments) << job.err();
    for (const string& words : each.words) EXPECT_THAT(job.err(), HasSubstr(words));
    EXPECT_THAT(job.out(), Not(HasSubstr("started")));
  }
}

}  // namespace
}  // namespace cohort::launcher
