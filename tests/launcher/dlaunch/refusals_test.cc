// Jobs that cannot work are refused at once, with a status, a cause and a remedy, and start nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/runtime/base/build_info.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/sanitizer.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

struct Refusal {
  std::vector<std::string> arguments;
  int status;
  std::vector<std::string> says;  // what the message must hold
  friend std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
    for (const std::string& argument : refusal.arguments) out << argument << " ";
    return out;
  }
};

// Ten times what is promised, for busy machines, as in other tests.
constexpr std::chrono::seconds kTenTimesThePromise{10};
std::chrono::steady_clock::duration slowest{};

// The exit status of a dlaunch that was started just now.
int StatusInTime(DlaunchProcess* job) {
  const auto start = std::chrono::steady_clock::now();
  const int status = job->Wait();
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, kTenTimesThePromise);
  slowest = std::max(slowest, took);
  return status;
}

class RefusedCommands : public ::testing::TestWithParam<Refusal> {
 protected:
  static void TearDownTestSuite() {
    std::printf("the slowest refusal took %.3f s\n", std::chrono::duration<double>(slowest).count());
  }
};

TEST_P(RefusedCommands, RefusesTheCommandAtOnceWithARemedy) {
  DlaunchProcess job(GetParam().arguments);
  EXPECT_EQ(StatusInTime(&job), GetParam().status) << job.err();
  EXPECT_EQ(job.out(), "");
  EXPECT_TRUE(job.err().starts_with("dlaunch: ")) << job.err();
  for (const std::string& text : GetParam().says) EXPECT_NE(job.err().find(text), std::string::npos) << job.err();
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RefusedCommands,
    ::testing::Values(
        Refusal{{}, 2, {"no program given", "dlaunch [options]", "(dlaunch --help has examples) [no-program]\n"}},
        Refusal{{"--"}, 2, {"no program given"}}, Refusal{{"--nnodes", "0", "true"}, 2, {"--nnodes '0'", "1 to"}},
        Refusal{{"--nnodes", ":", "true"}, 2, {"--nnodes ':'", "1 to", "2:5"}},
        Refusal{{"--nnodes", "2:", "true"}, 2, {"--nnodes '2:'", "2:5"}},
        Refusal{{"--launcher", "local", "--hosts", "a", "true"}, 2, {"--hosts and --launcher local", "leave one out"}},
        Refusal{{"--ssh", "no-such-ssh", "--hosts", "a", "true"}, 2, {"there is no no-such-ssh in PATH", "--ssh"}},
        Refusal{{"--ssh", "\"", "--hosts", "a", "true"}, 2, {"there is no \" in PATH", "--ssh"}},
        Refusal{{"--insecure", "true"},
                2,
                {"--insecure is for pods and machines that run the same command", "leave it out"}},
        Refusal{{"--token-file", "/x", "true"}, 2, {"--token-file /x is for pods", "leave it out"}},
        Refusal{{"-n", "1000000", "true"}, 2, {"the limit is 1024 on each node", "more nodes"}},
        Refusal{{"--nproc-per-node", "0", "true"}, 2, {"--nproc-per-node '0'"}},
        Refusal{{"--nproc-per-node", "-1", "true"}, 2, {"'-1'", "whole number"}},
        Refusal{{"--nproc-per-node", "1e3", "true"}, 2, {"'1e3'", "whole number"}},
        Refusal{{"--nproc-per-node", "99999999999", "true"}, 2, {"'99999999999'", "1024"}},
        Refusal{{"--nproc-per-node", "1025", "true"}, 2, {"'1025'", "1024"}},
        Refusal{{"--nproc-per-node", "", "true"}, 2, {"''", "whole number"}},
        Refusal{{"--nproc-per-node", " 2", "true"}, 2, {"whole number"}},
        Refusal{{"--nproc-per-node"}, 2, {"--nproc-per-node has no value: give it one"}},
        Refusal{{"--np="}, 2, {"--np has no value"}}, Refusal{{"--log-dir=", "true"}, 2, {"--log-dir has no value"}},
        Refusal{{"--nproc_per_node=gpu", "true"}, 2, {"'gpu': leave it out and give --gpus-per-rank 1"}},
        Refusal{{"--nproc-per-node", "auto", "true"}, 2, {"'auto': leave it out: there is then a rank for each GPU"}},
        Refusal{{"--nproc-per-node", "cpu", "true"}, 2, {"'cpu': give their number"}},
        Refusal{{"--ssh", "false", "--hosts", "localhost", "true"}, 2, {"for this machine alone leave --hosts out\n"}},
        Refusal{{"--nnodes", "2", "--nnodes", "2", "true"}, 2, {"--nnodes", "once"}},
        Refusal{{"-np", "0", "true"}, 2, {"--np '0'", "whole number"}},
        Refusal{{"-n", "0", "true"}, 2, {"'0'", "whole number"}},
        Refusal{{"-n", "3", "--nproc-per-node", "2", "true"}, 2, {"-n 3", "take 2 ranks"}},
        Refusal{{"-n", "1", "--simulate-nodes", "2", "--nnodes", "2", "true"}, 2, {"--nnodes 1"}},
        Refusal{{"--launcher", "slurm", "true"}, 2, {"SLURM_JOB_ID is not set", "--explain"}},
        Refusal{{"--launcher", "rsh", "true"}, 2, {"'rsh'", "slurm", " [wrong-value]\n"}},
        Refusal{{"--rank-order", "random", "true"}, 2, {"'random'", "natural"}},
        Refusal{{"--rank-order", "file:", "true"}, 2, {"'file:'", "the path of a list of hosts"}},
        Refusal{{"--rank-order", "file:/nowhere", "true"}, 2, {"--rank-order file:/nowhere"}},
        Refusal{{"--env-pass", "A=1", "true"}, 2, {"'A=1'", "--env NAME=VALUE"}},
        Refusal{{"--rdzv-backend"}, 2, {"--rdzv-backend has no value"}},
        Refusal{{"--no_python", "true"}, 2, {"'--no_python'", "leave it out"}},
        Refusal{{"--node_rank=1", "true"}, 2, {"on one machine only, with --hosts a,b", "dlaunch join"}},
        Refusal{{"-m"}, 2, {"no program given"}},
        Refusal{{"-j", "4", "true"}, 2, {"unknown option '-j' (dlaunch --help", " [option-unknown]\n"}},
        Refusal{{"--ntasks-per-node=4", "true"}, 2, {"did you mean --nproc-per-node?"}},
        Refusal{{"--nnodess", "4", "true"}, 2, {"'--nnodess'", "did you mean --nnodes?"}},
        Refusal{{"--restart", "true"}, 2, {"unknown option '--restart'"}},
        Refusal{{"--nnodes", "2", "true"}, 2, {"--simulate-nodes 2", "--nproc-per-node", "--wait 600"}},
        Refusal{{"--wait", "5", "true"}, 2, {"say how many with --nnodes"}},
        Refusal{{"--wait", "soon", "--nnodes", "2", "true"}, 2, {"--wait 'soon'", "seconds"}},
        Refusal{{"--nnodes", "2", "--wait", "5", "--dry-run", "true"}, 2, {"--simulate-nodes 2"}},
        Refusal{{"--nnodes", "2", "--wait", "0.1", "true"}, 125, {"1 of 2 nodes came in time"}},
        Refusal{{"--port-range", "5", "true"}, 2, {"--port-range '5'", "29400:29499"}},
        Refusal{{"--port-range", "29500:29500", "true"}, 2, {"'29500:29500'", "one port is too few", "MASTER_PORT"}},
        Refusal{{"--bind", "socket", "true"}, 2, {"--bind 'socket'", "core, numa or none"}},
        Refusal{{"--stdin", "all", "true"}, 2, {"--stdin 'all'", "rank0 or none"}},
        Refusal{{"--stdin", "rank0", "--max-restarts", "2", "true"}, 2, {"contradict", "read a file"}},
        Refusal{{"--log-rate", "fast", "true"}, 2, {"--log-rate 'fast'", "such as 64K"}},
        Refusal{{"--metrics", "99999", "true"}, 2, {"--metrics '99999'", "TCP port"}},
        Refusal{{"top", "job-zz"}, 1, {"no job 'job-zz' runs"}}, Refusal{{"top", "-d"}, 2, {"use: dlaunch top"}},
        Refusal{{"top", "--interval", "soon"}, 2, {"--interval 'soon'", "seconds"}},
        Refusal{{"--port-range", "9:5", "true"}, 2, {"'9:5'"}},
        Refusal{{"--bind", "x", "--nproc-per-node=0", "--grace", "y", "--env", "Z", "true"},
                2,
                {"dlaunch: --nproc-per-node '0'", "\ndlaunch: --bind 'x'", "\ndlaunch: --grace 'y'",
                 "\ndlaunch: --env 'Z'"}},
        Refusal{{"--nnodes", "2", "--wait", "5", "--iface", "nope", "true"},
                2,
                {"this machine has no address on --iface nope; it has ", "lo (127.0.0.1)"}},
        Refusal{{"-n", "2", "--gpus-per-task", "1", "--simulate-nodes", "1", "true"},
                2,
                {"--gpus-per-rank 1: ", "has no GPU", "--simulate-gpus 2", "leave it out, and the ranks own no GPUs"}},
        Refusal{{"doctor", "now"}, 2, {"dlaunch doctor", "one argument too many"}},
        Refusal{{"join"}, 2, {"dlaunch join [--wait TIME] TOKEN"}}, Refusal{{"join", "cohort1.AAAA"}, 2, {"damaged"}},
        Refusal{{"join", "sesame"}, 2, {"no token"}},
        Refusal{{"--nnodes", "3", "--simulate-nodes", "2", "true"}, 2, {"contradict"}},
        Refusal{{"--simulate-nodes", "100000", "true"}, 2, {"1024"}},
        Refusal{{"--simulate-gpus", "5", "--gpus-per-rank", "2", "true"}, 2, {"sim:4", "left over"}},
        Refusal{{"--simulate-gpus", "2", "--gpus-per-rank", "4", "true"}, 2, {"lower --gpus-per-rank"}},
        Refusal{{"--simulate-nodes", "2", "--gpus-per-rank", "2", "true"}, 2, {"--simulate-gpus"}},
        Refusal{{"--hostfile", "/tmp", "true"}, 2, {"/tmp: can't be read"}},
        Refusal{{"--hostfile", "/dev/zero", "true"}, 2, {"more than 16 MiB"}},
        Refusal{{"--on-failure", "resume", "true"}, 2, {"end, restart or continue"}},
        Refusal{{"--max-restarts", "-1", "true"}, 2, {"--max-restarts '-1'", "from 0 to"}},
        Refusal{{"--max-restarts", "two", "true"}, 2, {"--max-restarts 'two'"}},
        Refusal{{"--on-failure", "end", "--max-restarts", "1", "true"}, 2, {"contradict"}},
        Refusal{{"--on-failure", "restart", "--max-restarts", "0", "true"}, 2, {"contradict"}},
        Refusal{{"--env", "COHORT_EPOCH=3", "true"}, 2, {"dlaunch sets COHORT_EPOCH itself"}},
        Refusal{{"--env", "COHORT_RANK=3", "true"}, 2, {"dlaunch sets COHORT_RANK itself"}},
        Refusal{{"--grace", "soon", "true"}, 2, {"'soon'", "seconds"}},
        Refusal{{"--grace", "-1", "true"}, 2, {"seconds"}}, Refusal{{"--grace", "nan", "true"}, 2, {"seconds"}},
        Refusal{{"--env", "NOVALUE", "true"}, 2, {"NAME=VALUE"}}, Refusal{{"--env", "=x", "true"}, 2, {"NAME=VALUE"}},
        Refusal{{"--env", "COHORT_LOCAL_RANK=1", "true"}, 2, {"COHORT_LOCAL_RANK"}},
        Refusal{{"--log-dir", "/proc/nowhere", "true"}, 2, {"--log-dir /proc/nowhere"}},
        Refusal{{"--log-dir", "/dev/null", "true"}, 2, {"--log-dir /dev/null"}},
        Refusal{{"no-such-program-anywhere"}, 127, {"no-such-program-anywhere", "PATH", "give its path"}},
        Refusal{{"statsu"}, 127, {"did you mean dlaunch status?"}}, Refusal{{"kil", "1"}, 127, {"dlaunch kill?"}},
        Refusal{{"whyy"}, 127, {"did you mean dlaunch why?"}}, Refusal{{"help"}, 127, {"did you mean dlaunch --help?"}},
        Refusal{{"./././nowhere/program"}, 127, {std::filesystem::current_path().string() + "/nowhere/program"}},
        Refusal{{"/nowhere/program"}, 127, {"/nowhere/program"}}, Refusal{{""}, 2, {"empty"}},
        Refusal{{"/dev/null"}, 126, {"/dev/null is a device, not a program"}},
        Refusal{{"/etc/passwd"}, 126, {"not executable", "chmod"}}, Refusal{{"/usr"}, 126, {"folder"}}));

// Scripts for many places have them; said, since it may be a slip.
TEST(Messages, NamesOptionsThatChangeNothing) {
  DlaunchProcess job({"--iface", "nope", "--ssh", "rsh", "--agent-path", "/x", "--launcher", "local", "true"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  for (const char* const option : {"--iface", "--ssh", "--agent-path"}) {
    EXPECT_NE(job.err().find(std::string(option) + " changes nothing here: this job is on this machine"),
              std::string::npos)
        << job.err();
  }
}

TEST(Refusals, RefusesToRunInsideAnotherJob) {
  DlaunchProcess job(
      {"true"}, {.environment = {"COHORT_AGENT=@cohort-1"}, .working_directory = "", .close_output_at_once = false});
  EXPECT_EQ(StatusInTime(&job), 2);
  EXPECT_NE(job.err().find("env -u COHORT_AGENT"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesAHostFileThatIsAPipeWithoutWriter) {
  const TemporaryFolder folder;
  const std::string pipe = folder.path() + "/hosts";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  DlaunchProcess job({"--hostfile", pipe, "true"});
  EXPECT_EQ(StatusInTime(&job), 2);
  EXPECT_NE(job.err().find(pipe), std::string::npos) << job.err();
}

// Only an agent can know.
runtime::FileDescriptor ListenOnPort(int port) {
  runtime::FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) return {};
  EXPECT_EQ(listen(listener.get(), 1), 0);
  return listener;
}

TEST(Refusals, RefusesARangeWithoutAPortForTheRanks) {
  runtime::FileDescriptor first;
  runtime::FileDescriptor second;
  int port = 20'000;
  for (; !first.valid() || !second.valid(); ++port) {
    ASSERT_LT(port, 65'000) << "no two ports beside each other are free";
    second.Close();
    first = ListenOnPort(port);
    if (first.valid()) second = ListenOnPort(port + 1);
  }
  const std::string range = std::to_string(port - 1) + ":" + std::to_string(port);
  DlaunchProcess job({"--port-range", range, "sh", "-c", "echo $MASTER_PORT"});
  EXPECT_EQ(StatusInTime(&job), 125) << job.err();
  EXPECT_EQ(job.out(), "");
  EXPECT_NE(job.err().find(range), std::string::npos) << job.err();
}

// A user who starts a daemon this way means it; any other user learns why no output is seen.
TEST(Messages, SaysThatOutputIsLost) {
  DlaunchProcess job({"-n", "2", "true"}, {.without_output = true});
  EXPECT_EQ(job.Wait(), 0);
  const std::string text = "the standard output is closed";
  const size_t at = job.err().find(text);
  EXPECT_NE(at, std::string::npos) << job.err();
  EXPECT_EQ(job.err().find(text, at + 1), std::string::npos) << job.err();  // agents say nothing of it
}

TEST(Refusals, RefusesStacksTooSmallForThreads) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_STACK, &before), 0);
  const rlimit small{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_STACK, &small), 0);
  DlaunchProcess job({"true"});
  const int status = StatusInTime(&job);
  ASSERT_EQ(setrlimit(RLIMIT_STACK, &before), 0);
  EXPECT_EQ(status, 125);
  EXPECT_NE(job.err().find("64 KiB (ulimit -s)"), std::string::npos) << job.err();
}

// gRPC ends an agent that has none left with SIGABRT, or waits for them without a word.
TEST(Refusals, RefusesTooFewDescriptors) {
  for (const rlim_t few : {12, 20, 40}) {
    const auto lower = [few] {
      const rlimit limit{.rlim_cur = few, .rlim_max = few};
      return setrlimit(RLIMIT_NOFILE, &limit) == 0;
    };
    DlaunchProcess job({"--nproc-per-node", "4", "true"}, {.enter = lower});
    EXPECT_EQ(StatusInTime(&job), 125);
    EXPECT_NE(job.err().find("open files is " + std::to_string(few) + " (ulimit -Hn)"), std::string::npos) << job.err();
    EXPECT_NE(job.err().find("raised, by root: ulimit -n "), std::string::npos) << job.err();
  }
}

TEST(Messages, SaysThatManyAgentsStartOnFewCpus) {
  const auto one_cpu = [] {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return false;
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &cpus) && kept++ > 0) CPU_CLR(cpu, &cpus);
    }
    return sched_setaffinity(0, sizeof cpus, &cpus) == 0;
  };
  DlaunchProcess job({"--simulate-nodes", "101", "true"}, {.enter = one_cpu});
  EXPECT_TRUE(job.WaitUntil([&] { return job.err().find("101 agents start on 1 CPU of") != std::string::npos; }))
      << job.err();
  ::kill(job.pid(), SIGTERM);
  EXPECT_NE(job.Wait(), -1);
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(30)), "");
}

// As a sandbox does, or an fs.nr_open below the hard limit.
bool ForbidSettingLimits() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prlimit64, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),  // the new limit
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Refusals, RefusesASoftLimitOnDescriptorsThatMayNotBeRaised) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "TSan's runtime must set limits itself";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 1024) GTEST_SKIP() << "ulimit -Hn is " << before.rlim_max;
  const auto lower = [before] {
    const rlimit limit{.rlim_cur = 20, .rlim_max = before.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 && ForbidSettingLimits();
  };
  DlaunchProcess job({"--nproc-per-node", "4", "true"}, {.enter = lower});
  const int status = StatusInTime(&job);
  if (status == 97) GTEST_SKIP() << "no filter of system calls may be set here";
  EXPECT_EQ(status, 125);
  EXPECT_NE(job.err().find("open files is 20 (ulimit -n), and raising it to the hard one, " +
                           std::to_string(before.rlim_max) + ", was refused"),
            std::string::npos)
      << job.err();
}

// Only the hard limit counts: dlaunch raises its own soft one. The ranks have the user's.
TEST(Refusals, TakesASoftLimitOnDescriptorsThatMayBeRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 1024) GTEST_SKIP() << "ulimit -Hn is " << before.rlim_max;
  const auto lower = [before] {
    const rlimit limit{.rlim_cur = 20, .rlim_max = before.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
  };
  DlaunchProcess job({"--nproc-per-node", "4", "sh", "-c", "ulimit -Sn"}, {.enter = lower});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[3] 20\n"), std::string::npos) << job.out();
}

TEST(Refusals, RefusesTooLittleAddressSpace) {
  if (COHORT_THREAD_SANITIZER || COHORT_ADDRESS_SANITIZER) GTEST_SKIP() << "sanitizers reserve more";
  const auto lower = [] {
    const rlimit limit{.rlim_cur = 300 << 20, .rlim_max = 300 << 20};
    return setrlimit(RLIMIT_AS, &limit) == 0;
  };
  DlaunchProcess job({"true"}, {.enter = lower});
  EXPECT_EQ(StatusInTime(&job), 125);
  EXPECT_NE(job.err().find("(ulimit -v)"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesToRunWithoutALoopbackInterface) {
  DlaunchProcess job({"true"}, {.enter = [] { return unshare(CLONE_NEWNET) == 0; }});
  const int status = StatusInTime(&job);
  if (status == kNotPermitted) GTEST_SKIP() << "no network namespace may be made here";
  EXPECT_EQ(status, 2);
  EXPECT_NE(job.err().find("ip link set lo up"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesToRunWithoutProc) {
  const auto unmount = [] {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           umount2("/proc", MNT_DETACH) == 0;
  };
  DlaunchProcess job({"true"}, {.enter = unmount});
  const int status = StatusInTime(&job);
  if (status == kNotPermitted) GTEST_SKIP() << "no file system may be unmounted here";
  EXPECT_EQ(status, 125);
  EXPECT_NE(job.err().find("mount -t proc"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesAFolderAsInput) {
  const runtime::FileDescriptor folder(open("/tmp", O_RDONLY | O_CLOEXEC));
  DlaunchProcess job({"--stdin", "rank0", "cat"}, {.input = folder.get()});
  EXPECT_EQ(StatusInTime(&job), 2);
  EXPECT_NE(job.err().find("the standard input is a folder"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesAScriptWithoutAnInterpreterLine) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--nproc-per-node", "2", folder.AddScript("script", "echo no interpreter\n")});
  EXPECT_EQ(StatusInTime(&job), 126);  // though agents and ranks are started before anybody can know
  EXPECT_NE(job.err().find("#!/bin/sh"), std::string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(std::chrono::seconds(10)), "");
}

TEST(Refusals, RefusesAProgramThatIsBeingWritten) {
  const TemporaryFolder folder;
  const std::string copy = folder.path() + "/program";
  std::filesystem::copy_file("/bin/true", copy);
  const runtime::FileDescriptor writer(open(copy.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer.valid());
  DlaunchProcess job({copy});
  EXPECT_EQ(StatusInTime(&job), 126) << job.err();
  EXPECT_NE(job.err().find("somebody has it open to write"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("or start a copy [program-open-to-write]"), std::string::npos) << job.err();
}

TEST(Refusals, RefusesTheTorchBackendWithoutThePythonPackageBesideIt) {
  const TemporaryFolder folder;
  const std::string copy = folder.path() + "/bin/dlaunch", out = folder.path() + "/out";
  std::filesystem::create_directory(folder.path() + "/bin");
  std::filesystem::copy_file(std::string(std::getenv("COHORT_TEST_BIN_DIR")) + "/dlaunch", copy);
  const std::string command = copy + " -n 2 --torch-backend cohort true > " + out + " 2>&1 < /dev/null";
  const int status = std::system(command.c_str());
  std::ifstream file(out);
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(WEXITSTATUS(status), 2) << said;
  EXPECT_TRUE(said.starts_with("dlaunch: --torch-backend cohort")) << said;
  EXPECT_NE(said.find("use the dlaunch of the wheel"), std::string::npos) << said;
}

TEST(Refusals, RefusesHostsWhoseSshIsKilled) {
  const TemporaryFolder folder;
  DlaunchProcess job({"--hosts", "a", "--ssh", folder.AddScript("ssh", "#!/bin/sh\nkill -KILL $$\n"), "true"});
  EXPECT_EQ(StatusInTime(&job), 2) << job.err();
  EXPECT_NE(job.err().find("host a could not be asked: ssh was killed by SIGKILL"), std::string::npos) << job.err();
  EXPECT_TRUE(job.err().ends_with(" [host-not-asked]\n")) << job.err();
}

TEST(Refusals, EachProblemEndsWithItsOwnId) {
  DlaunchProcess job({"--nnodes", "0", "--trace-last", "5", "true"});
  EXPECT_EQ(StatusInTime(&job), 2);
  EXPECT_NE(job.err().find("--nnodes '0': give a whole number from 1 to "), std::string::npos) << job.err();
  EXPECT_NE(job.err().find(" [wrong-value]\ndlaunch: "), std::string::npos) << job.err();
  EXPECT_TRUE(job.err().ends_with("give --trace FILE too [trace-last-alone]\n")) << job.err();
}

TEST(Refusals, AUsersWordsGiveNoId) {
  DlaunchProcess list({"--hostfile", "/nowhere/no program given", "true"});
  EXPECT_EQ(StatusInTime(&list), 2);
  EXPECT_NE(list.err().find("no program given"), std::string::npos) << list.err();
  EXPECT_EQ(list.err().find('['), std::string::npos) << list.err();
  DlaunchProcess program({"./no program given"});
  EXPECT_EQ(StatusInTime(&program), 127);
  EXPECT_TRUE(program.err().ends_with(" [program-not-found]\n")) << program.err();
}

TEST(Messages, HelpFitsTwoScreensAndHasExamples) {
  DlaunchProcess job({"--help"});
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_LE(std::count(job.out().begin(), job.out().end(), '\n'), 50);  // of 25 lines each
  EXPECT_NE(job.out().find("Examples:"), std::string::npos);
  for (const char* option : {"--nnodes", "--nproc-per-node", "--gpus-per-rank", "--simulate-nodes", "--simulate-gpus",
                             "--on-failure", "--dry-run", "--env", "--log-dir", "--grace", "--version"}) {
    EXPECT_NE(job.out().find(option), std::string::npos) << option;
  }
}

TEST(Messages, HelpOfStatusNamesTop) {
  DlaunchProcess job({"status", "--help"});
  EXPECT_EQ(job.Wait(), 0);
  for (const char* text : {"nodes with their ranks", "dlaunch top"}) {
    EXPECT_NE(job.out().find(text), std::string::npos) << job.out();
  }
}

TEST(Messages, VersionNamesTheBuild) {
  DlaunchProcess job({"--version"});
  EXPECT_EQ(job.Wait(), 0);
  const std::string build = "dlaunch (cohort) " + runtime::DescribeBuild() + "\n";
  EXPECT_EQ(job.out(), build);
  EXPECT_TRUE(build.starts_with("dlaunch (cohort) " COHORT_VERSION ", ")) << build;
  for (const char* part : {"UCX", "CUDA", "NCCL"}) EXPECT_NE(build.find(part), std::string::npos) << build;
}

}  // namespace
}  // namespace cohort::launcher
