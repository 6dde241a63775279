// PBS and LSF: the real dlaunch with the schedulers' variables and node files, and stand-ins for ssh and blaunch that
// run the command here.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;

class NodeFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
    std::ofstream(folder_.path() + "/nodes") << "c1\nc1\nc2\nc2\n";
  }
  string NodeFile() const { return folder_.path() + "/nodes"; }
  string Path() const { return "PATH=" + folder_.path() + ":/usr/bin:/bin"; }

  TemporaryFolder folder_;
};

TEST_F(NodeFiles, NodesOfPbsAreReachedBySsh) {
  // ssh [options] -T HOST COMMAND
  folder_.AddScript("ssh", "#!/bin/sh\nwhile [ \"$1\" != -T ]; do shift; done\nexport ON=$2\neval \"$3\"\n");
  DlaunchProcess job({"--nproc-per-node", "2", "--", "sh", "-c", "echo $RANK on $ON"},
                     {.environment = {Path(), "PBS_JOBID=12.head", "PBS_NODEFILE=" + NodeFile()}});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("4 ranks on 2 hosts of PBS job 12.head, by ssh"), string::npos) << job.err();
  EXPECT_NE(job.out().find("[1] 1 on c1"), string::npos) << job.out();
  EXPECT_NE(job.out().find("[2] 2 on c2"), string::npos) << job.out();
  EXPECT_EQ(job.WaitUntilGone(seconds(5)), "");
}

TEST_F(NodeFiles, RankZeroOnAHostReachedBySshHasNoInput) {
  folder_.AddScript("ssh", "#!/bin/sh\nwhile [ \"$1\" != -T ]; do shift; done\neval \"$3\"\n");
  const runtime::FileDescriptor input(::open(NodeFile().c_str(), O_RDONLY | O_CLOEXEC));
  DlaunchProcess job(
      {"sh", "-c", "echo $(wc -c) bytes"},
      {.environment = {Path(), "PBS_JOBID=12.head", "PBS_NODEFILE=" + NodeFile()}, .input = input.get()});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] 0 bytes"), string::npos) << job.out();
  EXPECT_NE(job.err().find("rank 0 is on c1, started by ssh, and does not get the standard input; give --stdin rank0"),
            string::npos)
      << job.err();
}

TEST_F(NodeFiles, ADeadHostIsLeftOutWhereTheOthersAreEnough) {
  folder_.AddScript("ssh",
                    "#!/bin/sh\nwhile [ \"$1\" != -T ]; do shift; done\n"
                    "if [ $2 = c1 ]; then echo no route to it >&2; exit 255; fi\nexport ON=$2\neval \"$3\"\n");
  const std::vector<string> surroundings = {Path(), "PBS_JOBID=12.head", "PBS_NODEFILE=" + NodeFile()};
  DlaunchProcess job({"--nnodes", "1:2", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE on $ON"},
                     {.environment = surroundings});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("left out: host c1 can't be reached: no route to it"), string::npos) << job.err();
  EXPECT_NE(job.err().find("2 ranks on 1 host of PBS job 12.head"), string::npos) << job.err();
  EXPECT_NE(job.out().find("[0] 0 of 2 on c2"), string::npos) << job.out();
  for (const char* nodes : {"2", "2:2"}) {
    DlaunchProcess refused({"--nnodes", nodes, "true"}, {.environment = surroundings});
    EXPECT_EQ(refused.Wait(), 2) << refused.err();
    EXPECT_NE(refused.err().find("host c1 can't be reached"), string::npos) << refused.err();
  }
}

TEST_F(NodeFiles, AllDeadHostsAreNamed) {
  // c1 is refused at once, c2 a while after it, and c3 says nothing for longer than dlaunch waits for it.
  folder_.AddScript("ssh",
                    "#!/bin/sh\nwhile [ \"$1\" != -T ]; do shift; done\n"
                    "case $2 in c2) sleep 0.5;; c3) exec sleep 60;; esac\n"
                    "if [ $2 != c4 ]; then echo no route to $2 >&2; exit 255; fi\neval \"$3\"\n");
  DlaunchProcess job({"--hosts", "c1,c2,c3,c4", "true"}, {.environment = {Path()}});
  EXPECT_EQ(job.Wait(), 2);
  EXPECT_TRUE(job.err().starts_with("dlaunch: 2 of 4 hosts can't be used: c1, c2\n")) << job.err();
  for (const char* text : {"host c1 can't be reached: no route to c1; try: ssh c1 true",
                           "host c2 can't be reached: no route to c2; try: ssh c2 true"}) {
    EXPECT_NE(job.err().find(text), string::npos) << job.err();
  }
  EXPECT_NE(job.err().find("\n    host c3 has not answered within "), string::npos) << job.err();
  EXPECT_EQ(job.err().find("host c4"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(5)), "");
}

TEST_F(NodeFiles, TheOptionThatGivesASlowHostLongerIsNamed) {
  const string way =
      folder_.AddScript("slow", "#!/bin/sh\necho Connection timed out during banner exchange >&2\nexit 255\n");
  DlaunchProcess job({"--ssh", way + " -p 22", "--hosts", "c1", "true"});
  EXPECT_EQ(job.Wait(), 2);
  EXPECT_NE(job.err().find("; try: " + way + " -p 22 c1 true, or where it is only slow: --ssh \"" + way +
                           " -p 22 -o ConnectTimeout=15\""),
            string::npos)
      << job.err();
  DlaunchProcess patient({"--ssh", way + " -o ConnectTimeout=30", "--hosts", "c1", "true"});
  EXPECT_EQ(patient.Wait(), 2);
  EXPECT_EQ(patient.err().find("only slow"), string::npos) << "ssh heeds the first of two: " << patient.err();
}

TEST_F(NodeFiles, NodesOfLsfAreReachedByBlaunch) {
  folder_.AddScript("blaunch", "#!/bin/sh\nexport ON=$1\nshift\nexec \"$@\"\n");
  DlaunchProcess job({"--", "sh", "-c", "echo $RANK on $ON"},
                     {.environment = {Path(), "LSB_JOBID=7", "LSB_DJOB_HOSTFILE=" + NodeFile()}});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("4 ranks on 2 hosts of LSF job 7"), string::npos) << job.err();
  EXPECT_NE(job.out().find("[1] 1 on c1"), string::npos) << job.out();
  EXPECT_NE(job.out().find("[2] 2 on c2"), string::npos) << job.out();
}

TEST_F(NodeFiles, AFileThatIsNotThereIsRefused) {
  DlaunchProcess job({"true"}, {.environment = {Path(), "PBS_JOBID=12", "PBS_NODEFILE=/no/file"}});
  EXPECT_EQ(job.Wait(), 2);
  EXPECT_NE(job.err().find("PBS_NODEFILE: /no/file: No such file"), string::npos) << job.err();
}

// On this machine alone it would be another job than was meant.
TEST_F(NodeFiles, AJobThatNamesNoFileIsRefused) {
  for (const char* variable : {"PBS_JOBID=12", "LSB_JOBID=12"}) {
    DlaunchProcess job({"true"}, {.environment = {Path(), variable}});
    EXPECT_EQ(job.Wait(), 2);
    EXPECT_NE(job.err().find("is not set, which names its hosts"), string::npos) << job.err();
    EXPECT_NE(job.err().find("--launcher local"), string::npos) << job.err();
  }
}

TEST_F(NodeFiles, AHostThatAnswersNothingIsNamed) {
  folder_.AddScript("ssh", "#!/bin/sh\nexit 0\n");
  DlaunchProcess job({"--hosts", "c1", "true"}, {.environment = {Path()}});
  EXPECT_EQ(job.Wait(), 2);
  EXPECT_NE(job.err().find("host c1 said nothing about itself; is "), string::npos) << job.err();
  EXPECT_NE(job.err().find("--agent-path"), string::npos) << job.err();
}

TEST_F(NodeFiles, OptionsComeBeforeTheSchedulersVariables) {
  DlaunchProcess job({"--launcher", "local", "true"},
                     {.environment = {Path(), "PBS_JOBID=12", "PBS_NODEFILE=/no/file"}});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("1 rank on this machine"), string::npos) << job.err();
}

}  // namespace
}  // namespace cohort::launcher
