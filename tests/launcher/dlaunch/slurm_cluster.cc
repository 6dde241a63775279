#include "tests/launcher/dlaunch/slurm_cluster.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "cohort/launcher/base/net/free_port.h"
#include "cohort/launcher/base/net/host_name.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;
using std::chrono::seconds;

bool Succeeds(const string& command) { return std::system(command.c_str()) == 0; }

string ReadFile(const string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

SlurmCluster::SlurmCluster() {
  for (const char* program : {"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun"}) {
    if (::access(program, X_OK) != 0) problem_ = "no Slurm here: install slurmctld, slurmd, slurm-client and munge";
  }
  if (::geteuid() != 0) problem_ = "slurmd needs root";
  if (!problem_.empty()) return;
  const string& at = folder_.path();
  Succeeds("chmod 755 " + at + " && mkdir -m 700 " + at + "/munge && mkdir " + at + "/state " + at +
           "/run && head -c 1024 "
           "/dev/urandom > " +
           at + "/munge/key && chmod 400 " + at + "/munge/key");
  WriteConfiguration();
  Start({"/usr/sbin/munged", "--foreground", "--force", "--key-file=" + at + "/munge/key",
         "--socket=" + at + "/run/munge", "--pid-file=" + at + "/munge/pid", "--log-file=" + at + "/munge/log",
         "--seed-file=" + at + "/munge/seed"});
  Await("munged", [&] { return ::access((at + "/run/munge").c_str(), F_OK) == 0; });
  Start({"/usr/sbin/slurmctld", "-D", "-c", "-f", configuration()});
  for (const char* node : {"v0", "v1"}) Start({"/usr/sbin/slurmd", "-D", "-N", node, "-f", configuration()});
  Await("Slurm's nodes",
        [&] { return Succeeds(With("sinfo -h -N -o %T 2> /dev/null | grep -c '^idle$' | grep -qx 2")); });
}

SlurmCluster::~SlurmCluster() {
  if (problem_.empty()) Succeeds(With("scancel -u root > /dev/null 2>&1"));
  for (auto pid = servers_.rbegin(); pid != servers_.rend(); ++pid) {
    ::kill(*pid, SIGTERM);
    const auto limit = std::chrono::steady_clock::now() + seconds(10);
    while (::waitpid(*pid, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > limit) ::kill(*pid, SIGKILL);
      ::usleep(10'000);  // a bounded poll
    }
  }
}

void SlurmCluster::WriteConfiguration() {
  const string& at = folder_.path();
  const string host = HostName();
  std::ofstream file(configuration());
  file << "ClusterName=test\nSlurmctldHost=" << host << "(127.0.0.1)\nSlurmctldPort=" << FindFreePort()
       << "\nAuthType=auth/munge\nAuthInfo=socket=" << at << "/run/munge\nSlurmUser=root\nSlurmdUser=root\n"
       << "StateSaveLocation=" << at << "/state\nSlurmdSpoolDir=" << at << "/spool-%n\nSlurmctldPidFile=" << at
       << "/run/ctld.pid\nSlurmdPidFile=" << at << "/run/slurmd-%n.pid\nSlurmctldLogFile=" << at
       << "/ctld.log\nSlurmdLogFile=" << at << "/slurmd-%n.log\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n"
       << "SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nSelectType=select/cons_tres\n"
       << "SelectTypeParameters=CR_CPU\nSchedulerParameters=sched_min_interval=1\nWaitTime=50\n";
  for (const char* node : {"v0", "v1"}) {
    file << "NodeName=" << node << " NodeHostname=" << host << " NodeAddr=127.0.0.1 Port=" << FindFreePort()
         << " CPUs=1 State=UNKNOWN\n";
  }
  file << "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n";
}

void SlurmCluster::Start(vector<string> arguments) {
  vector<char*> argv;
  for (string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const string log = folder_.path() + "/servers.log";
  const pid_t pid = ::fork();
  if (pid != 0) return servers_.push_back(pid);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::freopen(log.c_str(), "a", stdout) == nullptr || ::dup2(1, 2) < 0) ::_exit(1);
  ::execv(argv[0], argv.data());
  ::_exit(1);
}

void SlurmCluster::Await(const string& what, const std::function<bool()>& up) {
  const auto limit = std::chrono::steady_clock::now() + seconds(60);
  while (problem_.empty() && !up()) {
    if (std::chrono::steady_clock::now() > limit)
      problem_ = what + " did not come up: " + ReadFile(folder() + "/servers.log");
    ::usleep(50'000);  // a bounded poll: none of them says when it is ready
  }
}

}  // namespace cohort::launcher
