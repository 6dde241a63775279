// Jobs on other hosts by ssh: two network namespaces stand for two machines, with a real sshd in each.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"
#include "tests/launcher/dlaunch/same_command.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using std::chrono::seconds;
using testing::LinkedNamespaces;

constexpr char kServer[] = "/usr/sbin/sshd";
constexpr char kPrivilegeFolder[] = "/run/sshd";  // sshd insists on it

// Two machines, this process on the first, until the end of the process.
class Hosts {
 public:
  // Why there are none; empty: they are there.
  static const string& Problem() { return Get().problem_; }
  static string Address(int node) { return LinkedNamespaces::AddressOf(node); }
  static string SshCommand() { return "ssh -F " + Get().folder_.path() + "/ssh_config"; }
  static testing::LinkSettings& Link() { return Get().namespaces_->settings(); }

 private:
  static Hosts& Get() {
    static Hosts hosts;
    return hosts;
  }

  Hosts() {
    if (::access(kServer, X_OK) != 0) {
      problem_ = "no sshd here: install openssh-server and openssh-client";
      return;
    }
    auto made = LinkedNamespaces::Create();
    if (!made.ok()) {
      problem_ = string(made.status().message());
      return;
    }
    namespaces_ = *std::move(made);
    made_privilege_folder_ = ::mkdir(kPrivilegeFolder, 0755) == 0;
    WriteConfiguration();
    for (const int node : {0, 1}) servers_.push_back(StartServer(node));
    const absl::Status entered = namespaces_->Enter(0);
    if (!entered.ok()) problem_ = string(entered.message());
    for (const int node : {0, 1}) {
      const auto deadline = std::chrono::steady_clock::now() + seconds(20);
      while (problem_.empty() && !Succeeds(SshTo(node) + " true > /dev/null 2>&1")) {
        if (std::chrono::steady_clock::now() > deadline) problem_ = "sshd does not answer at " + Address(node);
        ::usleep(50'000);  // a bounded poll: sshd says nothing when it is ready
      }
    }
  }

  ~Hosts() {
    for (const pid_t pid : servers_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (made_privilege_folder_) ::rmdir(kPrivilegeFolder);
  }

  string SshTo(int node) const { return "ssh -F " + folder_.path() + "/ssh_config " + Address(node); }

  void WriteConfiguration() {
    const string& at = folder_.path();
    for (const string name : {"host", "user"}) {
      if (!Succeeds("ssh-keygen -q -t ed25519 -N '' -f " + at + "/" + name)) problem_ = "ssh-keygen makes no key";
    }
    std::ofstream(at + "/ssh_config") << "Host *\n  IdentityFile " << at << "/user\n  IdentitiesOnly yes\n  Port 2222\n"
                                      << "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
                                      << "  LogLevel ERROR\n";
    for (const int node : {0, 1}) {
      std::ofstream(at + "/sshd_config" + std::to_string(node))
          << "ListenAddress " << Address(node) << "\nPort 2222\nHostKey " << at << "/host\nAuthorizedKeysFile " << at
          << "/user.pub\nStrictModes no\nUsePAM no\nPidFile none\nMaxStartups 200:30:400\nPermitRootLogin yes\n";
    }
  }

  pid_t StartServer(int node) {
    const string configuration = folder_.path() + "/sshd_config" + std::to_string(node);
    const string log = folder_.path() + "/sshd_log" + std::to_string(node);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!namespaces_->Enter(node).ok()) ::_exit(1);
    ::execl(kServer, kServer, "-D", "-f", configuration.c_str(), "-E", log.c_str(), nullptr);
    ::_exit(1);
  }

  string problem_;
  TemporaryFolder folder_;
  std::unique_ptr<LinkedNamespaces> namespaces_;
  vector<pid_t> servers_;
  bool made_privilege_folder_ = false;
};

class Ssh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Hosts::Problem().empty()) GTEST_SKIP() << Hosts::Problem();
  }
  static vector<string> Command(const vector<string>& rest) {
    vector<string> arguments = {"--ssh", Hosts::SshCommand(), "--hosts", Hosts::Address(0) + "," + Hosts::Address(1)};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return arguments;
  }
};

TEST_F(Ssh, RunsACollectiveProgramOnBothHosts) {
  const string collperf = ProgramFolder() + "/collperf";
  DlaunchProcess job(Command({"--nproc-per-node", "2", collperf, "all_reduce", "-b", "8", "-e", "64K", "-n", "5"}));
  ASSERT_EQ(job.Wait(), 0) << job.out() << job.err();
  EXPECT_NE(job.err().find("4 ranks on 2 hosts by ssh"), string::npos) << job.err();
  EXPECT_NE(job.out().find("all_reduce"), string::npos) << job.out();
  EXPECT_EQ(job.WaitUntilGone(seconds(5)), "");
}

TEST_F(Ssh, RunsMpiProgramsOnBothHosts) {
  int ran = 0;
  for (const string how : {"pmi1", "pmix"}) {
    if (!Succeeds(string(COHORT_MPI_RANK) + " --probe " + how + " > /dev/null 2>&1")) continue;  // no such library here
    // The hosts have a second device that leads nowhere, which MPI's libraries would take too, and one /dev/shm, where
    // Open MPI's names of shared memory would be the same for both.
    DlaunchProcess job(
        Command({"--mpi", how, "--env", "UCX_NET_DEVICES=wire0", "--env", "OMPI_MCA_btl_tcp_if_include=wire0", "--env",
                 "OMPI_MCA_btl=self,tcp", "--nproc-per-node", "2", COHORT_MPI_RANK, "--once", how}));
    ASSERT_EQ(job.Wait(), 0) << how << job.out() << job.err();
    for (const string rank : {"0", "1", "2", "3"}) {
      EXPECT_NE(job.out().find("rank " + rank + " of 4 sum 4"), string::npos) << how << job.out();
    }
    ++ran;
  }
  if (ran == 0) GTEST_SKIP() << "no library of MPI here: install libmpich12 or libopenmpi3";
}

TEST_F(Ssh, TheSameCommandTrainsOnBothHosts) {
  DlaunchProcess job(Command(TwoNodeTraining()));
  ASSERT_EQ(job.Wait(), 0) << job.out() << job.err();
  EXPECT_NE(job.err().find("2 ranks on 2 hosts by ssh"), string::npos) << job.err();
  EXPECT_EQ(ProblemOfTraining(job.out()), "");
  EXPECT_EQ(job.WaitUntilGone(seconds(5)), "");
}

TEST_F(Ssh, RanksHaveTheirOwnHostAndOurVariables) {
  DlaunchProcess job(Command({"--env", "COLOUR=blue", "--", "sh", "-c",
                              "echo rank=$RANK node=$NODE_RANK master=$MASTER_ADDR $COLOUR $SHADE $(ip -br addr)"}),
                     {.environment = {"SHADE=dark one", "SLURM_PROCID=4"}});
  ASSERT_EQ(job.Wait(), 0) << job.err();
  for (const int node : {0, 1}) {
    const string expected = "rank=" + std::to_string(node) + " node=" + std::to_string(node) +
                            " master=" + Hosts::Address(0) + " blue dark one";
    const size_t at = job.out().find(expected);
    ASSERT_NE(at, string::npos) << job.out();
    const string line = job.out().substr(at, job.out().find('\n', at) - at);
    EXPECT_NE(line.find(Hosts::Address(node)), string::npos) << line;
    EXPECT_EQ(line.find(Hosts::Address(1 - node) + "/"), string::npos) << line;
  }
}

TEST_F(Ssh, ExitStatusAndLastLinesComeFromTheOtherHost) {
  DlaunchProcess job(
      Command({"--", "sh", "-c", "if [ $RANK = 1 ]; then echo no such tensor >&2; exit 7; fi; sleep 60"}));
  EXPECT_EQ(job.Wait(), 7) << job.err();
  EXPECT_NE(job.err().find("rank 1 (" + Hosts::Address(1)), string::npos) << job.err();
  EXPECT_NE(job.err().find("no such tensor"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(5)), "");
}

TEST_F(Ssh, NothingIsLeftWhenDlaunchIsKilled) {
  DlaunchProcess job(Command({"--", "sh", "-c", "echo ready; sleep 60 & setsid sleep 60 & wait"}));
  ASSERT_TRUE(job.WaitUntil([&] {
    return job.out().find("[0] ready") != string::npos && job.out().find("[1] ready") != string::npos;
  })) << job.err();
  ::kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.WaitUntilGone(seconds(10)), "");
}

TEST_F(Ssh, LossOfAConnectionEndsTheJobAndNamesTheNode) {
  DlaunchProcess job(Command({"--", "sh", "-c", "echo ready; sleep 60"}));
  ASSERT_TRUE(job.WaitUntil([&] {
    return job.out().find("[0] ready") != string::npos && job.out().find("[1] ready") != string::npos;
  })) << job.err();
  Hosts::Link().cut = true;
  const int status = job.Wait(seconds(40));
  Hosts::Link().cut = false;
  EXPECT_NE(status, 0);
  EXPECT_NE(status, -1) << "the job did not end: " << job.err();
  EXPECT_NE(job.err().find(Hosts::Address(1)), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(40)), "");
}

TEST_F(Ssh, HostsThatCanNotBeUsedAreRefusedWithTheRemedy) {
  const struct {
    vector<string> arguments;
    vector<string> words;
  } cases[] = {
      {{"--hosts", Hosts::Address(0) + ",10.77.0.1:99999", "true"}, {"--hosts", "after the colon"}},
      {{"--hosts", "-oProxyCommand=touch", "true"}, {"begins with '-'"}},
      {{"--hosts", "no-such-host.invalid", "true"},
       {"no-such-host.invalid", "can't be reached", " no-such-host.invalid true"}},
      {{"--hosts", Hosts::Address(1), "--agent-path", "/no/dlaunch", "true"}, {"no dlaunch at /no/dlaunch"}},
      {{"--hosts", Hosts::Address(1), "--agent-path", "/bin/true", "true"}, {Hosts::Address(1), "said nothing"}},
      {{"--hosts", Hosts::Address(1), "--nnodes", "2", "true"}, {"the list has 1 host"}},
      {{"--hosts", Hosts::Address(1), "--gpus-per-rank", "2", "true"}, {Hosts::Address(1), "no GPU"}},
  };
  for (const auto& [arguments, words] : cases) {
    vector<string> all = {"--ssh", Hosts::SshCommand()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    DlaunchProcess job(all);
    EXPECT_EQ(job.Wait(), 2) << job.err();
    for (const string& word : words) EXPECT_NE(job.err().find(word), string::npos) << word << " in " << job.err();
  }
}

// Nobody has these addresses, and packets to them go nowhere without a word.
TEST_F(Ssh, HostsThatDropAllPacketsAreRefusedWithinFiveSecondsAndAllNamed) {
  DlaunchProcess job({"--ssh", Hosts::SshCommand(), "--hosts", Hosts::Address(1) + ",10.77.0.98,10.77.0.99", "true"});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(job.Wait(seconds(50)), 2) << job.err();
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, seconds(50)) << "ten times what is promised";
  std::printf("refused after %.3f s\n", std::chrono::duration<double>(took).count());
  EXPECT_TRUE(job.err().starts_with("dlaunch: 2 of 3 hosts can't be used: 10.77.0.98, 10.77.0.99\n")) << job.err();
  EXPECT_NE(job.err().find("host 10.77.0.98 can't be reached: ssh: connect to host 10.77.0.98"), string::npos)
      << job.err();
}

// As one that multiplexes connections, or an srun during an epilogue: the agent has said that nothing of its is
// missing.
TEST_F(Ssh, SshProcessesThatOutliveTheirAgentsLoseNothing) {
  const TemporaryFolder folder;
  vector<std::unique_ptr<DlaunchProcess>> jobs;  // at the same time: both mostly wait
  for (const string with_output : {"", "exec >&- 2>&-\n"}) {
    const string way = folder.AddScript("way" + std::to_string(jobs.size()),
                                        "#!/bin/sh\n" + Hosts::SshCommand() + " \"$@\"\n" +
                                            "case \"$*\" in *'/dlaunch agent --node='*) ;; *) exit ;; esac\n" +
                                            with_output + "sleep 8\nexit 255\n");
    jobs.push_back(std::make_unique<DlaunchProcess>(
        vector<string>{"--ssh", way, "--hosts", Hosts::Address(0) + "," + Hosts::Address(1), "--", "sh", "-c",
                       "for i in $(seq 1000); do echo $RANK says $i; done; echo the end of $RANK"}));
  }
  for (const auto& job : jobs) {
    EXPECT_EQ(job->Wait(), 0) << job->err();
    for (const string line : {"[0] the end of 0\n", "[1] the end of 1\n"}) {
      EXPECT_NE(job->out().find(line), string::npos) << job->out();
    }
    EXPECT_EQ(job->err().find("lost"), string::npos) << job->err();
    EXPECT_EQ(job->WaitUntilGone(seconds(20)), "");
  }
}

// It has nothing to say, and the rendezvous refuses it: the job is over.
TEST_F(Ssh, ASpareThatComesAfterTheEndSpoilsNothing) {
  const TemporaryFolder folder;
  const string late = folder.AddScript("late", "#!/bin/sh\ncase \"$*\" in *'" + Hosts::Address(1) +
                                                   " exec '*'/dlaunch agent --node='*) sleep 2 ;; esac\n" + "exec " +
                                                   Hosts::SshCommand() + " \"$@\"\n");
  DlaunchProcess job({"--ssh", late, "--hosts", Hosts::Address(0) + "," + Hosts::Address(1), "--spares", "1",
                      "--max-restarts", "1", "--", "sh", "-c", "echo done"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] done\n");
  EXPECT_EQ(job.err().find("lost"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(seconds(20)), "");
}

TEST_F(Ssh, NoiseOfAShellDoesNoHarm) {
  TemporaryFolder folder;
  // Stands for a dlaunch behind start-up files that print.
  const string noisy =
      folder.AddScript("noisy", "#!/bin/sh\necho Welcome to this machine\nprintf '\\001\\377\\n'\nexec " +
                                    ProgramFolder() + "/dlaunch \"$@\"\n");
  DlaunchProcess job(Command({"--agent-path", noisy, "--", "sh", "-c", "echo $RANK is here"}));
  ASSERT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[1] 1 is here"), string::npos) << job.out();
}

}  // namespace
}  // namespace cohort::launcher
