// Preemption of real jobs: dlaunch or an agent gets a scheduler's signal, and all ranks stop before the same step.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/options/options.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;
constexpr int kRanks = 4;

std::vector<string> Job(const TemporaryFolder& folder, std::vector<string> options, std::vector<string> arguments) {
  options.insert(options.begin(),
                 {"--simulate-nodes", "2", "--nproc-per-node", "2", "--log-dir", folder.path() + "/logs"});
  options.insert(options.end(), {"--", COHORT_PREEMPTION_RANK});
  options.insert(options.end(), arguments.begin(), arguments.end());
  return options;
}

void WaitUntilUnderWay(DlaunchProcess* job) {
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(job->WaitForOutput("[" + std::to_string(rank) + "] under way")) << job->err();
  }
}

// The steps that ranks say they have stopped before.
std::set<string> Stops(const TemporaryFolder& folder) {
  std::set<string> stops;
  for (int rank = 0; rank < kRanks; ++rank) stops.insert(ReadFile(folder.path() + "/stopped-" + std::to_string(rank)));
  return stops;
}

void ExpectPreempted(const TemporaryFolder& folder, DlaunchProcess* job, const string& signal) {
  EXPECT_EQ(job->Wait(), kExitPreempted) << job->err();
  const std::set<string> stops = Stops(folder);
  ASSERT_EQ(stops.size(), 1u) << job->err();
  EXPECT_NE(job->err().find("dlaunch: preempted (" + signal + "): all ranks stopped before step " + *stops.begin() +
                            ", as agreed\ndlaunch: exit status 75\n"),
            string::npos)
      << job->err();
  const auto record = nlohmann::json::parse(ReadFile(folder.path() + "/logs/report.json"));
  EXPECT_EQ(record["exit_code"], kExitPreempted);
  EXPECT_EQ(record["preempted"]["signal"], signal);
  EXPECT_EQ(std::to_string(record["preempted"]["step"].get<uint64_t>()), *stops.begin());
  EXPECT_EQ(job->WaitUntilGone(kGone), "");
}

string NameOf(int signal) { return string("SIG") + ::sigabbrev_np(signal); }

TEST(Preemption, AllRanksStopBeforeTheSameStep) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) {
    SCOPED_TRACE(signal);
    const TemporaryFolder folder;
    DlaunchProcess job(Job(folder, {}, {"1000000", "20000", folder.path()}));
    WaitUntilUnderWay(&job);
    ::kill(job.pid(), signal);
    ExpectPreempted(folder, &job, NameOf(signal));
  }
}

TEST(Preemption, ASignalAtAnAgentReachesAllRanks) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM}) {
    SCOPED_TRACE(signal);
    const TemporaryFolder folder;
    DlaunchProcess job(Job(folder, {}, {"1000000", "20000", folder.path()}));
    WaitUntilUnderWay(&job);
    ::kill(job.AgentProcess(1), signal);
    ExpectPreempted(folder, &job, NameOf(signal));
  }
}

TEST(Preemption, RanksThatDoNotStopAreEndedAfterTheGrace) {
  const TemporaryFolder folder;
  DlaunchProcess job(Job(folder, {"--grace", "1"}, {"1000000", "20000", folder.path(), "stuck"}));
  WaitUntilUnderWay(&job);
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_NE(job.err().find("had not stopped by themselves within the grace"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Preemption, RanksThatDoNotStopAfterSigtermAtAnAgentAreNotRestarted) {
  const TemporaryFolder folder;
  DlaunchProcess job(
      Job(folder, {"--grace", "1", "--max-restarts", "3"}, {"1000000", "20000", folder.path(), "stuck"}));
  WaitUntilUnderWay(&job);
  ::kill(job.AgentProcess(1), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_NE(job.err().find("got SIGTERM, and the ranks had not stopped by themselves within the grace"), string::npos)
      << job.err();
  EXPECT_EQ(job.err().find("restart 1 of"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

// Two nodes, programs that do not ask for notices; the first rank's ends soon. The agent of `node` gets SIGTERM.
void ExpectTheReasonIsTold(int node, const std::vector<string>& options, const string& reason) {
  SCOPED_TRACE(node);
  const TemporaryFolder folder;
  std::vector<string> command = {"--simulate-nodes", "2", "--log-dir", folder.path()};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"sh", "-c", "echo up; exec sleep $((RANK == 0 ? 2 : 60))"});
  DlaunchProcess job(command);
  ASSERT_TRUE(job.WaitForOutput("[0] up") && job.WaitForOutput("[1] up")) << job.err();
  ::kill(job.AgentProcess(node), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  const string cause = nlohmann::json::parse(ReadFile(folder.path() + "/report.json"))["cause"]["text"];
  EXPECT_NE(cause.find(reason), string::npos) << cause;
  EXPECT_EQ(job.err().find("restart 1 of"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Preemption, SigtermAtAnAgentIsTheReasonOfTheEndWhereNobodyAsks) {
  for (const int node : {0, 1}) {
    const string reason = "node" + std::to_string(node) + " was told to end by SIGTERM";
    ExpectTheReasonIsTold(node, {}, reason);
    ExpectTheReasonIsTold(node, {"--max-restarts", "3"}, reason);
  }
}

TEST(Preemption, SigtermAtAnAgentIsTheReasonOfItsRanksEndWhereTheOthersGoOn) {
  ExpectTheReasonIsTold(1, {"--on-failure", "continue"}, "killed by its agent: node1 was told to end by SIGTERM");
}

// The others wait for the agreed step then; the cause is the dead rank, and after an order to end nothing is restarted.
TEST(Preemption, ARankThatDiesAfterItsAnswerIsTheCause) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    SCOPED_TRACE(signal);
    const TemporaryFolder folder;
    const bool ordered = signal == SIGTERM;
    DlaunchProcess job(
        Job(folder, {"--max-restarts", ordered ? "3" : "0"}, {"1000000", "20000", folder.path(), "dies"}));
    WaitUntilUnderWay(&job);
    ::kill(job.pid(), signal);
    EXPECT_EQ(job.Wait(), 128 + SIGKILL) << job.err();
    EXPECT_NE(job.err().find("rank 3 "), string::npos) << job.err();
    EXPECT_EQ(job.err().find("dlaunch: preempted ("), string::npos) << job.err();
    EXPECT_EQ(job.err().find("restart 1 of"), string::npos) << job.err();
    const auto record = nlohmann::json::parse(ReadFile(folder.path() + "/logs/report.json"));
    EXPECT_EQ(record["cause"]["rank"], 3) << record;
    EXPECT_EQ(job.WaitUntilGone(kGone), "");
  }
}

TEST(Preemption, TheJobGoesOnWhereARankHasEnded) {
  const TemporaryFolder folder;
  DlaunchProcess job(Job(folder, {}, {"150", "30000", folder.path(), "leaves-early"}));
  WaitUntilUnderWay(&job);
  ASSERT_TRUE(job.WaitUntil([&] { return ReadFile(folder.path() + "/stopped-0") == "end"; })) << job.err();
  ASSERT_TRUE(job.WaitUntil([&] { return job.RankProcess(0) == 0; }));
  ::kill(job.pid(), SIGUSR1);
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(Stops(folder), std::set<string>{"end"});
}

TEST(Preemption, NoRestartFollowsAPreemption) {
  const TemporaryFolder folder;
  DlaunchProcess job(Job(folder, {"--max-restarts", "3"}, {"1000000", "20000", folder.path()}));
  WaitUntilUnderWay(&job);
  ::kill(job.pid(), SIGUSR1);
  ExpectPreempted(folder, &job, "SIGUSR1");
  EXPECT_EQ(job.err().find("restart"), string::npos) << job.err();
}

}  // namespace
}  // namespace cohort::launcher
