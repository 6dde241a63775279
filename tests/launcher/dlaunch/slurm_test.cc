// Jobs inside a real Slurm whose two nodes are virtual (slurm_cluster.h). Skips with the reason where there can be
// none.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"
#include "tests/launcher/dlaunch/same_command.h"
#include "tests/launcher/dlaunch/slurm_cluster.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using std::chrono::seconds;

// The processes that have `text` in their arguments or environment: pid, name, state, parent, group, session, terminal,
// the terminal's group; then the arguments and the place in the kernel where each waits.
void PrintProcessesWith(const string& text) {
  Succeeds("cd /proc; for p in $(grep -laF " + text +
           " [0-9]*/cmdline [0-9]*/environ 2> /dev/null | cut -d/ -f1 | sort -nu); do"
           " echo \"$(cut -d' ' -f1-8 $p/stat) $(tr '\\0' ' ' < $p/cmdline) $(cat $p/wchan)\"; done >&2");
}

// Runs the command as the leader of a session whose terminal is a new one, for 60 s at most, and returns what the
// terminal shows. The shell only names the command: srun must be of the terminal's foreground group, since it is
// stopped where it sets the terminal up in another, and a stopped srun does not end by SIGTERM. `timeout` below a shell
// that stays moves it to such a group.
string OnATerminal(const string& command, int* status) {
  int master = -1;
  const pid_t pid = ::forkpty(&master, nullptr, nullptr, nullptr);
  if (pid == 0) {
    ::execl("/bin/sh", "sh", "-c", ("exec env " + command).c_str(), nullptr);
    ::_exit(127);
  }
  const auto limit = std::chrono::steady_clock::now() + seconds(60);
  string shown;
  for (pid_t ended = 0; ended == 0;) {
    ended = ::waitpid(pid, status, WNOHANG);
    pollfd ready{master, POLLIN, 0};
    char buffer[4096];
    for (ssize_t count = 1; count > 0 && ::poll(&ready, 1, ended == 0 ? 50 : 0) > 0;) {
      count = ::read(master, buffer, sizeof buffer);
      if (count > 0) shown.append(buffer, static_cast<size_t>(count));
      if (std::chrono::steady_clock::now() > limit) break;
    }
    if (ended != 0 || std::chrono::steady_clock::now() < limit) continue;
    ADD_FAILURE() << command << " has not ended after 60 s and showed: " << shown;
    PrintProcessesWith(SlurmCluster::Get().folder());
    ::kill(-pid, SIGKILL);
    ended = ::waitpid(pid, status, 0);
  }
  ::close(master);
  return shown;
}

// The tests run `dlaunch` by three ways into Slurm: a batch script, srun, and a shell's allocation.
class SlurmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SlurmCluster::Get().problem().empty()) GTEST_SKIP() << SlurmCluster::Get().problem();
  }

  // Runs it as a batch script; its output is `out_`, and the result its exit status. Slurm reports a job's end only
  // after seconds, so the job does.
  int Batch(const string& script) {
    const string at = folder_.path();
    const string inner = folder_.AddScript("inner.sh", "#!/bin/sh\n" + script);
    const string outer = folder_.AddScript("job.sh", "#!/bin/sh\n" + inner + " > " + at + "/out 2>&1\necho $? > " + at +
                                                         "/s\nmv " + at + "/s " + at + "/status\n");
    if (!Succeeds(SlurmCluster::Get().With("sbatch --quiet --nodes=2 --output=/dev/null " + outer))) return -1;
    const auto limit = std::chrono::steady_clock::now() + seconds(60);
    while (::access((at + "/status").c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < limit) {
      ::usleep(20'000);  // a bounded poll
    }
    out_ = ReadFile(at + "/out");
    return std::atoi(ReadFile(at + "/status").c_str());
  }

  int Step(const string& command) {
    const string out = folder_.path() + "/out";
    const int status = std::system(
        SlurmCluster::Get().With("timeout -k 5 60 srun " + command + " < /dev/null > " + out + " 2>&1").c_str());
    out_ = ReadFile(out);
    return WEXITSTATUS(status);
  }

  string Training() const {
    string command = dlaunch_;
    for (const string& word : TwoNodeTraining()) command += " " + word;
    return command;
  }

  bool Printed(const string& text) const { return out_.find(text) != string::npos; }

  const string dlaunch_ = ProgramFolder() + "/dlaunch";
  TemporaryFolder folder_;
  string out_;
};

// An allocation as salloc gives it to a shell, until its end.
class Allocation {
 public:
  explicit Allocation(const TemporaryFolder& folder) {
    const string out = folder.path() + "/salloc";
    Succeeds(SlurmCluster::Get().With("timeout -k 5 60 salloc --nodes=2 --no-shell < /dev/null > " + out + " 2>&1"));
    const string text = ReadFile(out);
    const size_t digits = std::min(text.find_first_of("0123456789"), text.size());
    id_ = text.substr(digits, std::min(text.find_first_not_of("0123456789", digits), text.size()) - digits);
  }
  ~Allocation() { Succeeds(SlurmCluster::Get().With("scancel " + id_ + " > /dev/null 2>&1")); }
  DlaunchSurroundings Surroundings() const {
    return {.environment = {"SLURM_CONF=" + SlurmCluster::Get().configuration(), "SLURM_JOB_ID=" + id_,
                            "SLURM_JOBID=" + id_, "SLURM_JOB_NODELIST=v[0-1]", "SLURM_JOB_NUM_NODES=2",
                            "SLURM_NTASKS_PER_NODE=1"}};
  }
  const string& id() const { return id_; }

 private:
  string id_;
};

TEST_F(SlurmTest, ABatchScriptNeedsOneLine) {
  EXPECT_EQ(Batch(dlaunch_ + " --nproc-per-node 2 " + ProgramFolder() + "/collperf all_reduce -b 8 -e 64K -n 5\n"), 0)
      << out_;
  EXPECT_TRUE(Printed("4 ranks on 2 hosts of Slurm job ")) << out_;
  EXPECT_TRUE(Printed("all_reduce")) << out_;
}

TEST_F(SlurmTest, ABatchScriptRunsMpiPrograms) {
  int ran = 0;
  for (const string how : {"pmi1", "pmix"}) {
    if (!Succeeds(string(COHORT_MPI_RANK) + " --probe " + how + " > /dev/null 2>&1")) continue;  // no such library here
    EXPECT_EQ(Batch(dlaunch_ + " --mpi " + how + " --nproc-per-node 2 " + COHORT_MPI_RANK + " --once " + how + "\n"), 0)
        << out_;
    for (const string rank : {"0", "1", "2", "3"}) EXPECT_TRUE(Printed("rank " + rank + " of 4 sum 4")) << out_;
    ++ran;
  }
  if (ran == 0) GTEST_SKIP() << "no library of MPI here: install libmpich12 or libopenmpi3";
}

TEST_F(SlurmTest, TheSameCommandTrainsFromABatchScript) {
  EXPECT_EQ(Batch(Training() + "\n"), 0) << out_;
  EXPECT_TRUE(Printed("2 ranks on 2 hosts of Slurm job ")) << out_;
  EXPECT_EQ(ProblemOfTraining(out_), "");
}

TEST_F(SlurmTest, TheSameCommandTrainsFromSrun) {
  EXPECT_EQ(Step("--nodes=2 --ntasks-per-node=1 " + Training()), 0) << out_;
  EXPECT_TRUE(Printed("2 ranks on 2 hosts of Slurm job ")) << out_;
  EXPECT_EQ(ProblemOfTraining(out_), "");
}

TEST_F(SlurmTest, RanksSeeTheirNodeAndNotTheTasksOfSlurm) {
  EXPECT_EQ(Batch(dlaunch_ + " sh -c 'echo \"$RANK is on $SLURMD_NODENAME of $SLURM_JOB_ID ${SLURM_PROCID-none}\"'\n"
                             "echo job $SLURM_JOB_ID\n"),
            0)
      << out_;
  const size_t at = out_.find("\njob ") + 5;
  const string job = out_.substr(at, out_.find('\n', at) - at);
  EXPECT_TRUE(Printed("[0] 0 is on v0 of " + job + " none")) << out_;
  EXPECT_TRUE(Printed("[1] 1 is on v1 of " + job + " none")) << out_;
}

TEST_F(SlurmTest, TheFirstFailureIsTheBatchScriptsStatus) {
  EXPECT_EQ(Batch("exec " + dlaunch_ + " sh -c 'if [ $RANK = 1 ]; then echo no tensor >&2; exit 7; fi; sleep 60'\n"), 7)
      << out_;
  EXPECT_TRUE(Printed("rank 1 (v1, pid ")) << out_;
  EXPECT_TRUE(Printed("no tensor")) << out_;
}

TEST_F(SlurmTest, TheDeployedScriptRunsAnyProgram) {
  const string out = folder_.path() + "/out";
  ASSERT_TRUE(Succeeds("PATH=" + ProgramFolder() + ":$PATH " +
                       SlurmCluster::Get().With("sbatch --quiet --output=" + out +
                                                " " COHORT_DEPLOY_DIR "/slurm/job.sh sh -c "
                                                "'echo $RANK of $WORLD_SIZE; exit 3'")));
  const auto limit = std::chrono::steady_clock::now() + seconds(60);
  while (!Printed("dlaunch: exit status 3") && std::chrono::steady_clock::now() < limit) {
    ::usleep(20'000);  // a bounded poll
    out_ = ReadFile(out);
  }
  EXPECT_TRUE(Printed("] 1 of 2")) << out_;
  EXPECT_TRUE(Printed("dlaunch: exit status 3")) << out_;
}

TEST_F(SlurmTest, FewerNodesThanAskedForAreRefused) {
  EXPECT_EQ(Batch("exec " + dlaunch_ + " --nnodes 3 true\n"), 2) << out_;
  EXPECT_TRUE(Printed("--nnodes 3: Slurm job ")) << out_;
  EXPECT_TRUE(Printed("has 2 hosts")) << out_;
}

TEST_F(SlurmTest, DlaunchStartedBySrunOnEachNodeIsOneJob) {
  EXPECT_EQ(
      Step("--nodes=2 --ntasks-per-node=1 " + dlaunch_ + " sh -c 'echo $RANK of $WORLD_SIZE on $SLURMD_NODENAME'"), 0)
      << out_;
  EXPECT_TRUE(Printed("[0] 0 of 2 on v0")) << out_;
  EXPECT_TRUE(Printed("[1] 1 of 2 on v1")) << out_;
}

TEST_F(SlurmTest, WarnsThatSrunKillsTheFirstTaskAWhileAfterTheOthers) {
  EXPECT_EQ(Step("--nodes=2 --ntasks-per-node=1 " + dlaunch_ + " true"), 0) << out_;
  EXPECT_TRUE(Printed("Slurm's WaitTime is 50 s")) << out_;
  EXPECT_TRUE(Printed("Use: srun --wait=0")) << out_;
  EXPECT_EQ(Batch(dlaunch_ + " true\n"), 0) << out_;
  EXPECT_FALSE(Printed("WaitTime")) << out_;
}

TEST_F(SlurmTest, MoreTasksThanNodesAreRefusedWithTheCommand) {
  EXPECT_EQ(Step("--nodes=2 --ntasks=4 --overcommit " + dlaunch_ + " true"), 2) << out_;
  EXPECT_TRUE(Printed("srun --wait=0 -N 2 --ntasks-per-node=1 dlaunch")) << out_;
}

TEST_F(SlurmTest, TheShellOfAPtyHasTheAllocationAndItsTasks) {
  const string inner = folder_.AddScript("shell.sh", "#!/bin/sh\n" + dlaunch_ + " sh -c 'echo $RANK of $WORLD_SIZE'\n");
  int status = -1;
  out_ = OnATerminal(SlurmCluster::Get().With("srun --nodes=1 --ntasks=3 --overcommit --pty " + inner), &status);
  EXPECT_EQ(status, 0) << out_;
  EXPECT_TRUE(Printed("3 ranks on 1 host of Slurm job ")) << out_;
  EXPECT_TRUE(Printed("[2] 2 of 3")) << out_;
}

TEST_F(SlurmTest, AShellsAllocationGivesItsNodes) {
  const Allocation allocation(folder_);
  DlaunchProcess job({"-n", "3", "--rank-order", "natural", "--", "sh", "-c", "echo $RANK on $SLURMD_NODENAME"},
                     allocation.Surroundings());
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (const char* line : {"[0] 0 on v0", "[1] 1 on v0", "[2] 2 on v1"}) {
    EXPECT_NE(job.out().find(line), string::npos) << line << " in " << job.out();
  }
  EXPECT_EQ(job.WaitUntilGone(seconds(10)), "");
}

TEST_F(SlurmTest, ExplainShowsHowThePlanWasMade) {
  const Allocation allocation(folder_);
  DlaunchProcess job({"--explain", "true"}, allocation.Surroundings());
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (const string& text :
       {string("* slurm       SLURM_JOB_ID is " + allocation.id()), string("by: srun"), string("v1")}) {
    EXPECT_NE(job.out().find(text), string::npos) << text << " in " << job.out();
  }
}

TEST_F(SlurmTest, NothingIsLeftWhenDlaunchIsKilled) {
  const Allocation allocation(folder_);
  DlaunchProcess job({"--", "sh", "-c", "echo ready; sleep 60 & setsid sleep 60 & wait"}, allocation.Surroundings());
  ASSERT_TRUE(job.WaitUntil([&] {
    return job.out().find("[0] ready") != string::npos && job.out().find("[1] ready") != string::npos;
  })) << job.err();
  ::kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.WaitUntilGone(seconds(10)), "");
}

TEST_F(SlurmTest, AKilledAgentEndsTheJob) {
  const Allocation allocation(folder_);
  DlaunchProcess job({"--", "sh", "-c", "echo ready; sleep 60"}, allocation.Surroundings());
  ASSERT_TRUE(job.WaitUntil([&] {
    return job.out().find("[0] ready") != string::npos && job.out().find("[1] ready") != string::npos;
  })) << job.err();
  // The agent itself: the srun that carries it, and Slurm's own processes, have the same words in their arguments.
  for (const pid_t pid : job.ProcessesWith("dlaunch agent --node=1")) {
    std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
    string word;
    if (name >> word && word == "dlaunch") ::kill(pid, SIGKILL);
  }
  EXPECT_NE(job.Wait(seconds(40)), 0);
  EXPECT_NE(job.err().find("v1"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(10)), "");
}

}  // namespace
}  // namespace cohort::launcher
