// kill -9, SIGSTOP and signals for every process of a job: everything ends in time, the cause is named, nothing stays.
// The promise is 5 s at the worst; a test asserts ten times the 2 s that it should take.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cohort/launcher/agent/watch/keeper.h"
#include "cohort/launcher/agent/watch/process_state.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;
constexpr std::chrono::seconds kKilledWithin{3};  // a stopped rank, where it is not left alone: after 2.5 s

// The files in places where programs leave things behind. /tmp belongs to others as well, so jobs get their own folder.
std::set<string> SharedMemoryFiles() {
  std::set<string> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().filename().string().find("cohort") != string::npos) files.insert(entry.path());
  }
  return files;
}

// In pages.
size_t AddressSpace(pid_t pid) {
  size_t pages = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> pages;
  EXPECT_GT(pages, 0u) << pid;
  return pages;
}

class Faults : public ::testing::Test {
 protected:
  void StartFamily(std::vector<string> options = {}) {
    const std::vector<string> command = {"--simulate-nodes", "2", "--nproc-per-node", "2", "sh", "-c", kFamily};
    options.insert(options.end(), command.begin(), command.end());
    Start(options);
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(job_->WaitForOutput("[" + std::to_string(rank) + "] up")) << job_->err();
    }
    // dlaunch, 2 agents, 2 sentinels, 4 ranks with 3 children each.
    const auto count = [this] { return job_->Processes().size() - job_->ProcessesWith(kKeeperName).size(); };
    ASSERT_TRUE(job_->WaitUntil([&] { return count() == 5 + 16; })) << count();
  }
  pid_t Agent(int node) { return job_->AgentProcess(node); }
  pid_t Sentinel(size_t index) {
    job_->WaitUntil([&] { return job_->ProcessesWith("dlaunch sentinel").size() > index; });  // it names itself
    return job_->ProcessesWith("dlaunch sentinel").at(index);
  }
  // The first lines that dlaunch has printed after its summary.
  string Head() const { return job_->err().substr(job_->err().find('\n') + 1, 400); }
  void ExpectAllGone() { EXPECT_EQ(job_->WaitUntilGone(kGone), "") << job_->err(); }

  void Start(const std::vector<string>& arguments) {
    DlaunchSurroundings surroundings;
    surroundings.environment = {"TMPDIR=" + folder_.path()};
    job_ = std::make_unique<DlaunchProcess>(arguments, surroundings);
  }
  void TearDown() override {
    EXPECT_EQ(SharedMemoryFiles(), files_before_);
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }

  const TemporaryFolder folder_;
  const std::set<string> files_before_ = SharedMemoryFiles();
  std::unique_ptr<DlaunchProcess> job_;
};

TEST_F(Faults, AKilledRankEndsTheJobAndIsNamed) {
  StartFamily();
  const pid_t victim = job_->RankProcess(3);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(job_->Wait(kGone), 137);
  EXPECT_NE(Head().find("rank 3 (node1, pid " + std::to_string(victim) + ") killed by SIGKILL"), string::npos)
      << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, AKilledAgentEndsTheJobAndIsNamed) {
  StartFamily();
  const pid_t victim = Agent(1);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(job_->Wait(kGone), 125);
  EXPECT_NE(Head().find("the agent of node1 (pid " + std::to_string(victim) + ") was killed by SIGKILL"), string::npos)
      << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, AKilledHostOfTheRendezvousEndsTheJobAndIsNamed) {
  StartFamily();
  const pid_t victim = Agent(0);
  ::kill(victim, SIGKILL);
  EXPECT_EQ(job_->Wait(kGone), 125);
  EXPECT_NE(Head().find("the agent of node0 (pid " + std::to_string(victim) + ") was killed by SIGKILL"), string::npos)
      << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, NothingIsLeftOfAKilledAgentAndItsSentinel) {
  StartFamily();
  const pid_t sentinel = Sentinel(1);
  ::kill(sentinel, SIGKILL);
  ::kill(Agent(1), SIGKILL);
  EXPECT_GT(job_->Wait(kGone), 0);
  ExpectAllGone();
}

// Anything that holds the agent's output would hold the whole job, and keep what its ranks have left behind.
TEST_F(Faults, NothingIsLeftOfAKilledAgentWhoseSentinelIsStopped) {
  StartFamily();
  const pid_t sentinel = Sentinel(0);
  const pid_t agent = ReadProcessState(sentinel)->parent;
  ::kill(sentinel, SIGSTOP);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job_->Wait(kGone), 125);
  // Whichever comes first: its end, which comes with that of its output, or that of its connection.
  const bool killed = Head().find("(pid " + std::to_string(agent) + ") was killed by SIGKILL") != string::npos;
  EXPECT_TRUE(killed || Head().find("lost: the agent of node1 is gone") != string::npos) << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, NothingIsLeftOfAKilledDlaunch) {
  StartFamily();
  ::kill(job_->pid(), SIGKILL);
  job_->Wait(kGone);
  ExpectAllGone();
}

TEST_F(Faults, NothingIsLeftOfAKilledDlaunchAndItsAgents) {
  StartFamily();
  const pid_t first = Agent(0);
  const pid_t second = Agent(1);
  for (const pid_t pid : {job_->pid(), first, second}) ::kill(pid, SIGKILL);
  job_->Wait(kGone);
  ExpectAllGone();
}

TEST_F(Faults, NothingIsLeftOfAKilledDlaunchWhoseAgentIsStuck) {
  StartFamily();
  ::kill(Agent(0), SIGSTOP);
  ::kill(job_->pid(), SIGKILL);
  job_->Wait(kGone);
  EXPECT_EQ(job_->WaitUntilGone(std::chrono::seconds(40)), "");
}

TEST_F(Faults, KilledSentinelIsReplacedAndTheJobGoesOn) {
  Start({"--nproc-per-node", "2", "--", "sh", "-c", "echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[1] up"));
  const pid_t old = Sentinel(0);
  ::kill(old, SIGKILL);
  ASSERT_TRUE(job_->WaitUntil([&] {
    const auto now = job_->ProcessesWith("dlaunch sentinel");
    return now.size() == 1 && now[0] != old;
  }));
  const pid_t agent = Agent(0);
  EXPECT_LT(AddressSpace(Sentinel(0)), AddressSpace(agent)) << "a copy of a process with threads";
  EXPECT_EQ(job_->err().find("is not started any more"), std::string::npos) << job_->err();
  // The new one does its work.
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job_->Wait(kGone), 125);
  ExpectAllGone();
}

TEST_F(Faults, SentinelsThatDoNotLiveAreReported) {
  const TemporaryFolder folder;
  Start({"sh", "-c", "echo up; while [ ! -e " + folder.path() + "/go ]; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[0] up"));
  const string told = " was killed by SIGKILL again and is not started any more";
  EXPECT_TRUE(job_->WaitUntil([&] {
    for (const pid_t sentinel : job_->ProcessesWith("dlaunch sentinel")) ::kill(sentinel, SIGKILL);
    return job_->err().find(told) != string::npos;
  })) << job_->err();
  std::ofstream(folder.path() + "/go") << "";
  EXPECT_EQ(job_->Wait(kGone), 0) << job_->err();
  EXPECT_EQ(job_->err().find(told), job_->err().rfind(told)) << "once is enough";
  ExpectAllGone();
}

TEST_F(Faults, StoppedRankIsKilledAndNamed) {
  StartFamily();
  ::kill(job_->RankProcess(2), SIGSTOP);
  EXPECT_EQ(job_->Wait(std::chrono::seconds(35)), 137);
  const size_t warned = job_->err().find(" is stopped (SIGSTOP); it is killed if it stays so");
  const size_t killed = job_->err().find("rank 2 (node1, pid ");
  EXPECT_NE(warned, string::npos) << job_->err();
  EXPECT_NE(killed, string::npos) << job_->err();
  EXPECT_LT(warned, killed) << "nobody was warned: " << job_->err();
  EXPECT_NE(job_->err().find("it stayed stopped (SIGSTOP)"), string::npos) << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, StoppedRankIsWaitedForWhereTheUserSaysSo) {
  Start({"--stopped", "wait", "sh", "-c", "echo up; while [ ! -e $TMPDIR/end ]; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[0] up"));
  const pid_t rank = job_->RankProcess(0);
  ::kill(rank, SIGSTOP);
  const string name = "rank 0 (pid " + std::to_string(rank) + ")";
  const auto told = [&] { return job_->err().find(name + " is stopped (SIGSTOP); the job waits") != string::npos; };
  ASSERT_TRUE(job_->WaitUntil(told)) << job_->err();
  const auto ended = [rank] {
    const auto state = ReadProcessState(rank);
    return !state || state->exiting;
  };
  EXPECT_FALSE(job_->WaitUntil(ended, kKilledWithin)) << job_->err();
  ::kill(rank, SIGCONT);
  EXPECT_TRUE(job_->WaitUntil([&] { return job_->err().find("rank 0 goes on") != string::npos; })) << job_->err();
  const std::filesystem::path end = folder_.path() + "/end";
  std::ofstream(end) << "";
  EXPECT_EQ(job_->Wait(), 0) << job_->err();
  std::filesystem::remove(end);
}

// One that never says who it is, behind a shell that only waits for it.
TEST_F(Faults, StoppedProgramBehindAWrapperIsKilledAndNamed) {
  Start({"-n", "2", "--", "sh", "-c", "sleep 600; echo done"});
  pid_t program = 0;
  ASSERT_TRUE(job_->WaitUntil([&] {
    for (const pid_t pid : job_->ProcessesWith("sleep 600 ")) {
      const auto state = ReadProcessState(pid);
      const pid_t rank = job_->RankProcess(1);
      if (state && rank != 0 && pid != rank && state->parent == rank) program = pid;
    }
    return program != 0;
  })) << job_->err();
  if (!job_->WaitUntil([&] { return WrappedProgram(job_->RankProcess(1)) == program; }, std::chrono::seconds(5))) {
    GTEST_SKIP() << "this kernel does not tell where a process waits";
  }
  ::kill(program, SIGSTOP);
  EXPECT_EQ(job_->Wait(std::chrono::seconds(35)), 137) << job_->err();
  EXPECT_NE(Head().find("rank 1"), string::npos) << job_->err();
  EXPECT_NE(Head().find("SIGSTOP"), string::npos) << job_->err();
  ExpectAllGone();
}

// Two stops which together last longer than one may.
TEST_F(Faults, ShortlyStoppedRankIsLeftAlone) {
  Start({"sh", "-c", "echo up; for i in 1 2; do (sleep 1.4; kill -CONT $$) & kill -STOP $$; wait; done; echo went on"});
  EXPECT_EQ(job_->Wait(), 0) << job_->err();
  EXPECT_NE(job_->out().find("went on"), string::npos);
}

TEST_F(Faults, RankStoppedByADebuggerIsLeftAlone) {
  Start({"sh", "-c", "echo up; while ! [ -e /proc/$$/never ]; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[0] up"));
  const pid_t rank = job_->RankProcess(0);
  if (::ptrace(PTRACE_SEIZE, rank, nullptr, nullptr) != 0) GTEST_SKIP() << "no process may be traced here";
  ::kill(rank, SIGSTOP);
  const auto ended = [rank] {
    const auto state = ReadProcessState(rank);
    return !state || state->exiting;
  };
  EXPECT_FALSE(job_->WaitUntil(ended, kKilledWithin)) << job_->err();
  ::ptrace(PTRACE_DETACH, rank, nullptr, nullptr);
  ::kill(job_->pid(), SIGKILL);
  job_->Wait(kGone);
  ExpectAllGone();
}

TEST_F(Faults, AStoppedAgentEndsTheJobAndItsNodeIsNamed) {
  StartFamily();
  ::kill(Agent(1), SIGSTOP);
  EXPECT_GT(job_->Wait(std::chrono::seconds(35)), 0);
  EXPECT_NE(Head().find("node1"), string::npos) << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, InterruptEndsTheJobInOrder) {
  Start(
      {"--nproc-per-node", "2", "sh", "-c", "trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[0] up") && job_->WaitForOutput("[1] up"));
  ::kill(job_->pid(), SIGINT);
  EXPECT_EQ(job_->Wait(kGone), 130) << job_->err();
  EXPECT_NE(job_->out().find("[0] saving"), string::npos) << job_->out();
  EXPECT_NE(job_->out().find("[1] saving"), string::npos) << job_->out();
  ExpectAllGone();
}

TEST_F(Faults, TerminateEndsTheJobInOrder) {
  StartFamily();
  ::kill(job_->pid(), SIGTERM);
  EXPECT_EQ(job_->Wait(kGone), 143) << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, SecondInterruptDoesNotWaitForTheGrace) {
  Start(
      {"--grace", "3600", "--simulate-nodes", "2", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job_->WaitForOutput("[0] up") && job_->WaitForOutput("[1] up"));
  ::kill(job_->pid(), SIGINT);
  ASSERT_TRUE(job_->WaitUntil([this] { return job_->err().find("SIGINT") != string::npos; }));
  ASSERT_TRUE(job_->WaitUntil([this] {  // one that comes within 50 ms is taken for the first
    ::kill(job_->pid(), SIGINT);
    return job_->err().find("ending the job at once") != string::npos;
  })) << job_->err();
  EXPECT_EQ(job_->Wait(kGone), 130) << job_->err();
  ExpectAllGone();
}

// The job is over, and dlaunch waits for a reader that takes nothing: more than a pipe holds, less than dlaunch does.
TEST_F(Faults, InterruptEndsThePrintingThatNobodyReads) {
  const TemporaryFolder folder;
  const string go = folder.path() + "/go";
  Start({"sh", "-c", "until [ -e " + go + " ]; do sleep 0.05; done; head -c 1000000 /dev/zero | tr '\\0' x"});
  const auto until = std::chrono::steady_clock::now() + kGone;
  // Not WaitUntil, which reads.
  const auto wait_for = [&](const auto& condition) {
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  };
  // Its sentinel may have that name as well until it is scheduled.
  ASSERT_TRUE(wait_for([this] { return !job_->ProcessesWith("dlaunch agent").empty(); }));
  std::ofstream(go) << "";
  ASSERT_TRUE(wait_for([this] { return job_->Processes().size() == 1; }));
  // The first may come while dlaunch still waits for its agent, and is then taken for a wish that has come true.
  EXPECT_TRUE(wait_for([this] {
    ::kill(job_->pid(), SIGINT);
    return job_->Processes().empty();
  }));
}

TEST_F(Faults, RanksThatIgnoreTermAreKilledAfterTheGrace) {
  const TemporaryFolder folder;
  const string deaf = folder.path() + "/deaf";
  Start({"--nproc-per-node", "2", "--grace", "0.3", "sh", "-c",
         "if [ $RANK = 0 ]; then until [ -e " + deaf + " ]; do sleep 0.05; done; exit 3; fi; trap '' TERM; : > " +
             deaf + "; while :; do sleep 0.05; done"});
  EXPECT_EQ(job_->Wait(kGone), 3) << job_->err();
  EXPECT_NE(Head().find("rank 0"), string::npos) << "not the rank that was killed by its agent: " << job_->err();
  ExpectAllGone();
}

TEST_F(Faults, BackgroundProcessesOfRanksThatEndedAreSwept) {
  Start({"--nproc-per-node", "2", "sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & sleep 1000 & exit 0"});
  EXPECT_EQ(job_->Wait(kGone), 0) << job_->err();
  ExpectAllGone();
}

}  // namespace
}  // namespace cohort::launcher
