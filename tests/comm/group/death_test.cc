// Ranks that die: everybody else's operations end, and the error names the dead.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/fail_with.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::ConstBuffer;
using comm::ReduceOp;

std::string CheckDeath(const absl::Status& status, const std::string& rank) {
  const std::string text(status.message());
  if (!absl::IsUnavailable(status)) return "not kUnavailable: " + status.ToString();
  if (text.find(rank) == std::string::npos) return "\"" + rank + "\" is missing in: " + text;
  return "";
}

struct Setting {
  int ranks;
  int victim;
  bool progress_thread;
};

class KillTest : public ::testing::TestWithParam<Setting> {};

TEST_P(KillTest, PendingAndLaterCallsNameTheDeadRank) {
  const Setting setting = GetParam();
  ProcessClusterOptions options;
  options.ranks = setting.ranks;
  options.progress_thread = setting.progress_thread;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    std::vector<float> data(1 << 16, 1.0f);
    absl::Status status;
    auto killed = std::chrono::steady_clock::now();
    for (int i = 0; status.ok(); ++i) {
      if (rank.rank == setting.victim && i == 20) {
        // In the middle of an operation that others wait in.
        runtime::Work work =
            rank.world->AllReduce(ConstBuffer(data.data(), 1 << 16), Buffer(data.data(), 1 << 16), ReduceOp::kMax);
        kill(getpid(), SIGKILL);
      }
      killed = std::chrono::steady_clock::now();
      status = rank.world->AllReduce(ConstBuffer(data.data(), 1 << 16), Buffer(data.data(), 1 << 16), ReduceOp::kMax)
                   .Wait(std::chrono::seconds(20));
    }
    if (std::chrono::steady_clock::now() - killed > std::chrono::seconds(5)) return "too late: " + status.ToString();
    if (std::string wrong = CheckDeath(status, "rank " + std::to_string(setting.victim)); !wrong.empty()) return wrong;
    if (rank.world->Barrier().Wait() != status) return "a later call ended differently";
    return "";
  });
  for (int rank = 0; rank < setting.ranks; ++rank) {
    const RankResult& result = results[static_cast<size_t>(rank)];
    EXPECT_FALSE(result.hung);
    if (rank == setting.victim) {
      EXPECT_EQ(result.signal, SIGKILL);
    } else {
      EXPECT_EQ(result.text, "") << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, KillTest,
                         ::testing::Values(Setting{2, 0, false}, Setting{2, 1, true}, Setting{4, 0, false},
                                           Setting{4, 2, true}, Setting{7, 6, false}));

// Rank 0 waits for rank 1, which waits for the dead rank 2.
TEST(FailWithTest, AGroupThatFailsWithAnotherNamesADeadRankOfTheOther) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    const std::vector<int> low = {0, 1}, high = {1, 2};
    std::unique_ptr<comm::Communicator> together, plain, upper;
    if (rank.rank < 2) {
      const auto parent = *rank.world->Subgroup(low);
      comm::FailWith(*parent, *rank.world);
      together = *parent->Duplicate();  // as its parent
      plain = *rank.world->Subgroup(low);
    }
    if (rank.rank > 0) upper = *rank.world->Subgroup(high);
    if (const absl::Status status = rank.world->Barrier().Wait(); !status.ok()) return status.ToString();
    int32_t ready = 0;  // to rank 2, which dies when the others are past the barrier
    if (rank.rank < 2) rank.world->Send(ConstBuffer(&ready, 1), 2).Wait().IgnoreError();
    for (int from = 0; rank.rank == 2 && from < 2; ++from) {
      if (!rank.world->Recv(Buffer(&ready, 1), from).Wait().ok()) return "no message";
    }
    if (rank.rank == 2) kill(getpid(), SIGKILL);
    const std::chrono::seconds limit(20);
    const absl::Status status = (rank.rank == 0 ? together : upper)->Barrier().Wait(limit);
    if (std::string wrong = CheckDeath(status, "rank 2"); !wrong.empty()) return wrong;
    const auto later = *together->Duplicate();
    if (std::string wrong = CheckDeath(later->Barrier().Wait(limit), "rank 2"); !wrong.empty()) return wrong;
    return plain->Barrier().Wait(limit).ok() ? "" : "a group of the living has failed";
  });
  EXPECT_EQ(results[2].signal, SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(results[static_cast<size_t>(rank)].text, "") << "rank " << rank;
}

// Between hosts there is no agent in this test: the transport sees the connection end.
TEST(KillBetweenHostsTest, RanksOnOtherHostsEndWhenARankIsKilled) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ProcessClusterOptions options;
  options.ranks = 2;
  options.nodes = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    std::vector<float> data(1 << 16, 1.0f);
    absl::Status status;
    CallOptions call_options;
    call_options.timeout = std::chrono::seconds(20);
    for (int i = 0; status.ok(); ++i) {
      if (rank.rank == 1 && i == 5) kill(getpid(), SIGKILL);
      status =
          rank.world
              ->AllReduce(ConstBuffer(data.data(), 1 << 16), Buffer(data.data(), 1 << 16), ReduceOp::kMax, call_options)
              .Wait();
    }
    return CheckDeath(status, "rank 1");
  });
  EXPECT_EQ(results[0].text, "");
  EXPECT_EQ(results[1].signal, SIGKILL);
}

// A message that a rank sent before it ended in order arrives, also if the receiver comes to the group only afterwards.
TEST(KillBetweenHostsTest, TheLastMessageOfARankThatHasEndedArrives) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ProcessClusterOptions options;
  options.ranks = 2;
  options.nodes = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    if (const absl::Status met = rank.world->Barrier().Wait(); !met.ok()) return met.ToString();
    int32_t value = 7 * (1 - rank.rank);
    if (rank.rank == 1) {  // the end of the other one is seen
      rank.runtime->engine().DriveUntil([] { return false; }, runtime::Deadline::After(std::chrono::milliseconds(500)));
    }
    const int both[] = {0, 1};
    auto group = rank.world->Subgroup(both);
    if (!group.ok()) return group.status().ToString();
    const absl::Status status =
        rank.rank == 0 ? (*group)->Send(ConstBuffer(&value, 1), 1).Wait() : (*group)->Recv(Buffer(&value, 1), 0).Wait();
    if (!status.ok()) return status.ToString();
    return value == 7 ? "" : "another value came";
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

// Whenever it happens: the others' operations end with the text that announced the death, and name what they were in.
TEST(SimDeathTest, ADeathAtAnyMomentFailsTheOthersWithItsText) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimClusterOptions options;
    options.ranks = 2 + static_cast<int>(seed % 4);
    options.network.seed = seed;
    SimCluster cluster(options);
    const int victim = static_cast<int>(seed / 4) % options.ranks;
    std::vector<std::string> wrong(static_cast<size_t>(options.ranks));
    cluster.Run([&](SimRank& rank) {
      std::vector<int64_t> data(3000);
      const Buffer buffer(data.data(), 3000);
      absl::Status status = rank.world->Barrier().Wait();
      if (rank.rank == victim) {
        runtime::Work work = rank.world->AllReduce(buffer, buffer, ReduceOp::kSum);
        rank.Poll(static_cast<int>(seed * 7 % 200));
        rank.Die("rank " + std::to_string(victim) + " (sim, pid 4711) killed by SIGKILL");
        return;
      }
      while (status.ok()) status = rank.world->AllReduce(buffer, buffer, ReduceOp::kSum).Wait();
      wrong[static_cast<size_t>(rank.rank)] =
          CheckDeath(status, "(sim, pid 4711) killed by SIGKILL while others were in");
    });
    for (const std::string& text : wrong) EXPECT_EQ(text, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::testing
