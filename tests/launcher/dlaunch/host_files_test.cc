// Host files and what goes to other hosts: the real dlaunch with a stand-in for ssh that runs the command here. Files
// that name this machine alone give as many ranks as the mpirun for which they are written starts, where that is
// installed.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/base/run_commands.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

class HostFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
    // ssh [options] -T HOST COMMAND, by a shell that knows little of this one.
    ssh_ = folder_.AddScript("wrapper",
                             "#!/bin/sh\nwhile [ \"$1\" != -T ]; do shift; done\n"
                             "exec env -i PATH=/usr/bin:/bin ON=$2 sh -c \"$3\"\n");
  }
  string Write(const string& text) {
    std::ofstream(folder_.path() + "/hosts") << text;
    return folder_.path() + "/hosts";
  }
  // "a0 a1 b2": the host of each rank, in order.
  string Placed(const string& file, const vector<string>& options) {
    vector<string> arguments = {"--ssh", ssh_, "--hostfile", file};
    arguments.insert(arguments.end(), options.begin(), options.end());
    for (const char* const word : {"--no-prefix", "sh", "-c", "echo $ON$RANK"}) arguments.emplace_back(word);
    DlaunchProcess job(arguments);
    if (job.Wait() != 0) return job.err();
    vector<string> lines;
    string text = job.out();
    for (size_t end = 0; (end = text.find('\n')) != string::npos; text.erase(0, end + 1)) {
      lines.push_back(text.substr(0, end));
    }
    std::sort(lines.begin(), lines.end(), [](const string& a, const string& b) { return a.back() < b.back(); });
    string placed;
    for (const string& line : lines) placed += (placed.empty() ? "" : " ") + line;
    return placed;
  }

  TemporaryFolder folder_;
  string ssh_;
};

TEST_F(HostFiles, SlotsOfAHostFileAreRanks) {
  EXPECT_EQ(Placed(Write("a slots=2 max_slots=4\r\nb slots = 1 # the small one\r\n"), {}), "a0 a1 b2");
  EXPECT_EQ(Placed(Write("b\na\nb\n"), {}), "b0 b1 a2");
  EXPECT_EQ(Placed(Write("a:2\nb:2\n"), {"-n", "3"}), "a0 a1 b2");
  EXPECT_NE(Placed(Write("a:2\nb\n"), {"-n", "4"}).find("the nodes take 3 ranks"), string::npos);
  EXPECT_NE(Placed(Write("a\nb slotz=2\n"), {}).find("/hosts line 2: 'slotz' is not known"), string::npos);
}

TEST_F(HostFiles, HostFilesGiveAsManyRanksAsUnderMpirun) {
  struct Case {
    const char* program;
    vector<string> options;
    string text;
  };
  const vector<string> open = {"--allow-run-as-root", "--oversubscribe", "--hostfile"};
  const Case cases[] = {{"/usr/bin/mpirun.openmpi", open, "localhost slots=3\n"},
                        {"/usr/bin/mpirun.openmpi", open, "localhost\nlocalhost\n"},
                        {"/usr/bin/mpirun.openmpi", open, "# none\n\tlocalhost  slots = 2  # two\r\n"},
                        {"/usr/bin/mpirun.openmpi", open, "localhost max_slots=2\n"},
                        {"/usr/bin/mpirun.openmpi", open, "localhost count=2\n"},
                        {"/usr/bin/mpirun.mpich", {"-f"}, "localhost:3\n"},
                        {"/usr/bin/mpirun.mpich", {"-f"}, "localhost:1\nlocalhost:2\n"},
                        {"/usr/bin/mpirun.mpich", {"-f"}, "localhost:2 binding=user:0,1\n"}};
  int compared = 0;
  for (const Case& one : cases) {
    if (::access(one.program, X_OK) != 0) continue;
    const string file = Write(one.text);
    vector<string> theirs = {one.program};
    theirs.insert(theirs.end(), one.options.begin(), one.options.end());
    for (const string& word : {file, string("printf"), string("x")}) theirs.push_back(word);
    const string expected = RunCommands({theirs}, {})[0].output;
    if (expected.empty() || expected.find_first_not_of('x') != string::npos) continue;  // it does not work here
    DlaunchProcess job({"--ssh", ssh_, "--hostfile", file, "--no-prefix", "--", "printf", "x\\n"});
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_EQ(std::count(job.out().begin(), job.out().end(), 'x'), static_cast<long>(expected.size())) << one.text;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "no mpirun works here";
}

// As under mpirun: nothing has to be reached.
TEST_F(HostFiles, ThisMachineAloneNeedsNoSsh) {
  for (const string& hosts : {string("localhost:3"), string("127.0.0.1:2,127.0.0.1")}) {
    DlaunchProcess job({"--hosts", hosts, "/bin/sh", "-c", "echo of $WORLD_SIZE"}, {.environment = {"PATH=/nothing"}});
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_NE(job.out().find("[2] of 3\n"), string::npos) << job.out() << job.err();
    EXPECT_NE(job.err().find("3 ranks on this machine"), string::npos) << job.err();
  }
}

TEST_F(HostFiles, TheSshCommandMayBeARelativePath) {
  DlaunchProcess job({"--ssh", "./wrapper", "--hosts", "c1", "sh", "-c", "echo on $ON"},
                     {.working_directory = folder_.path()});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] on c1\n");
  DlaunchProcess absent({"--ssh", "./none", "--hosts", "c1", "true"}, {.working_directory = folder_.path()});
  EXPECT_EQ(absent.Wait(), 2);
  EXPECT_NE(absent.err().find("there is no ./none on this machine"), string::npos) << absent.err();
  ASSERT_EQ(::chmod(ssh_.c_str(), 0644), 0);
  DlaunchProcess unusable({"--ssh", "./wrapper", "--hosts", "c1", "true"}, {.working_directory = folder_.path()});
  EXPECT_EQ(unusable.Wait(), 2);
  EXPECT_NE(unusable.err().find("wrapper is not executable"), string::npos) << unusable.err();
}

TEST_F(HostFiles, ExportedFunctionsOfBashReachOtherHosts) {
  DlaunchProcess job({"--ssh", ssh_, "--hosts", "c1,c2", "bash", "-c", "greet $RANK"},
                     {.environment = {"BASH_FUNC_greet%%=() {  echo hello $1\n}"}});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] hello 0\n"), string::npos) << job.out();
  EXPECT_NE(job.out().find("[1] hello 1\n"), string::npos) << job.out();
}

}  // namespace
}  // namespace cohort::launcher
