// Restarts of real jobs: all ranks end, all of them begin again with the same numbers, and nothing of the epoch before
// is left.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/launcher/agent/watch/keeper.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;

std::vector<string> TwoNodes(std::vector<string> options, const string& script) {
  options.insert(options.begin(), {"--simulate-nodes", "2", "--nproc-per-node", "2"});
  options.insert(options.end(), {"sh", "-c", script});
  return options;
}

// A scheduler takes the node away while no rank lives: the next epoch must not begin there.
TEST(Restart, NoRestartFollowsSigtermAtAnAgentBetweenTwoEpochs) {
  DlaunchProcess job(TwoNodes({"--max-restarts", "9"}, "exit 3"));
  ASSERT_TRUE(job.WaitUntil([&job] { return job.err().find("restart 4 of 9 of all ranks, in 4 s") != string::npos; }))
      << job.err();
  ::kill(job.AgentProcess(1), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_NE(job.err().find("node1 was told to end by SIGTERM"), string::npos) << job.err();
  EXPECT_EQ(job.err().find("restart 5 of"), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Restart, AllRanksBeginAgainWithTheirNumbers) {
  const TemporaryFolder folder;
  DlaunchProcess job(TwoNodes({"--max-restarts", "2", "--log-dir", folder.path()},
                              "echo rank $RANK epoch $COHORT_EPOCH count $TORCHELASTIC_RESTART_COUNT of "
                              "$TORCHELASTIC_MAX_RESTARTS; "
                              "if [ $COHORT_EPOCH = 1 ]; then [ $RANK = 2 ] && exit 7; sleep 1000; fi"));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("rank 2 (node1, pid "), string::npos) << job.err();
  EXPECT_NE(job.err().find("exited with code 7"), string::npos) << job.err();
  EXPECT_NE(job.err().find("dlaunch: restart 1 of 2 of all ranks, now\n"), string::npos) << job.err();
  EXPECT_EQ(job.err().find("exit status"), string::npos) << job.err();  // it was not the end
  for (int rank = 0; rank < 4; ++rank) {
    const string name = std::to_string(rank);
    EXPECT_NE(job.out().find("[" + name + "] rank " + name + " epoch 2 count 1 of 2\n"), string::npos) << job.out();
    EXPECT_EQ(ReadFile(folder.path() + "/rank-" + name + ".out"), "rank " + name + " epoch 1 count 0 of 2\n");
    EXPECT_EQ(ReadFile(folder.path() + "/rank-" + name + ".restart-1.out"), "rank " + name + " epoch 2 count 1 of 2\n");
  }
  const auto record = nlohmann::json::parse(ReadFile(folder.path() + "/report.json"));
  EXPECT_EQ(record["exit_code"], 0);
  EXPECT_EQ(record["ranks"].size(), 4u);
  ASSERT_EQ(record["restarted_after"].size(), 1u);
  EXPECT_EQ(record["restarted_after"][0]["exit_code"], 7);
  EXPECT_EQ(record["restarted_after"][0]["cause"]["rank"], 2);
  EXPECT_EQ(record["restarted_after"][0]["ranks"].size(), 4u);
}

TEST(Restart, TheLastFailureIsTheJobsFailure) {
  DlaunchProcess job(TwoNodes({"--on-failure", "restart", "--max-restarts", "1"},
                              "echo up; [ $RANK = 1 ] && exit $((4 + COHORT_EPOCH)); sleep 1000"));
  EXPECT_EQ(job.Wait(), 6) << job.err();
  EXPECT_EQ(CountOf(job.out(), "[1] up\n"), 2u) << job.out();
  EXPECT_EQ(CountOf(job.err(), "dlaunch: restart "), 1u) << job.err();
  EXPECT_NE(job.err().find("no restart: it has been restarted 1 time\ndlaunch: exit status 6\n"), string::npos)
      << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Restart, AProgramThatCanNotBeExecutedIsNotRestarted) {
  const TemporaryFolder folder;
  const string program = folder.AddScript("broken", "#!/nowhere/interpreter\n");
  DlaunchProcess job({"--max-restarts", "5", "--nproc-per-node", "2", program});
  EXPECT_EQ(job.Wait(), 127) << job.err();
  EXPECT_EQ(job.err().find("dlaunch: restart "), string::npos) << job.err();
  EXPECT_NE(job.err().find("no restart: what could not be executed"), string::npos) << job.err();
}

TEST(Restart, NoRestartFollowsTheLossOfANode) {
  DlaunchProcess job(TwoNodes({"--max-restarts", "5"}, "echo up; sleep 1000"));
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up"));
  ::kill(job.AgentProcess(1), SIGKILL);
  EXPECT_EQ(job.Wait(), 125) << job.err();
  EXPECT_EQ(job.err().find("dlaunch: restart "), string::npos) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Restart, CollectivesWorkInTheNextEpoch) {
  const string program = ProgramFolder() + "/collperf";
  DlaunchProcess job(TwoNodes(
      {"--max-restarts", "1", "--grace", "1"},
      "if [ $COHORT_EPOCH = 1 ] && [ $RANK = 3 ]; then kill -9 $$; fi; exec " + program + " all_reduce -b 8 -e 1K"));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("killed by SIGKILL"), string::npos) << job.err();
  EXPECT_NE(job.err().find("restart 1 of 1"), string::npos) << job.err();
}

// The children of the first epoch are gone when the second is up.
TEST(Restart, NothingOfTheEpochBeforeIsLeft) {
  DlaunchProcess job(TwoNodes({"--max-restarts", "2"}, kFamily));
  for (size_t epoch = 1; epoch <= 3; ++epoch) {
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(job.WaitUntil([&] { return CountOf(job.out(), "[" + std::to_string(rank) + "] up\n") == epoch; }))
          << job.err();
    }
    // dlaunch, 2 agents, 2 sentinels, 4 ranks with 3 children each.
    const auto count = [&] { return job.Processes().size() - job.ProcessesWith(kKeeperName).size(); };
    ASSERT_TRUE(job.WaitUntil([&] { return count() == 5 + 16; })) << count();
    if (epoch < 3) ::kill(job.RankProcess(static_cast<int>(epoch)), SIGKILL);
  }
  ::kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.Wait(), 143) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

TEST(Restart, CtrlCWhileTheJobPausesEndsIt) {
  DlaunchProcess job(TwoNodes({"--max-restarts", "100"}, "exit 1"));
  ASSERT_TRUE(job.WaitUntil([&] { return job.err().find("in 2 s") != string::npos; })) << job.err();
  ::kill(job.pid(), SIGINT);
  EXPECT_EQ(job.Wait(), 130) << job.err();
  EXPECT_EQ(job.WaitUntilGone(kGone), "");
}

// Whatever is killed, and whenever: also while ranks end and begin again.
TEST(Restart, TheJobEndsWhateverIsKilledAtAnyMoment) {
  const auto seed = static_cast<uint32_t>(std::random_device()());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int trial = 0; trial < 6; ++trial) {
    DlaunchProcess job(TwoNodes({"--max-restarts", "1", "--grace", "1"}, kFamily));
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(job.WaitForOutput("[" + std::to_string(rank) + "] up")) << job.err();
    }
    ::kill(job.RankProcess(static_cast<int>(random() % 4)), SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));  // the moment is what is tried
    const auto processes = job.Processes();
    ASSERT_FALSE(processes.empty());
    ::kill(std::next(processes.begin(), static_cast<int64_t>(random() % processes.size()))->first, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    ::kill(job.pid(), SIGTERM);
    EXPECT_GT(job.Wait(kGone), 0) << job.err();
    EXPECT_EQ(job.WaitUntilGone(kGone), "") << job.err();
  }
}

}  // namespace
}  // namespace cohort::launcher
