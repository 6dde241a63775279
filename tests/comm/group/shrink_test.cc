// Shrink: after deaths the survivors go on computing right results, in one group that all of them agree on.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/comm/group/survivors.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Communicator;

// Ranks of a test without dlaunch die by their own hand, so that the moment is a matter of the seed.
TEST(ShrinkTest, TheSurvivorsGoOnAfterADeathAtAnyMoment) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ProcessClusterOptions options;
    options.ranks = 4;
    options.progress_thread = seed % 3 == 0;
    const int victim = static_cast<int>(seed % 4);
    const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
      const int dies_at = rank.rank == victim ? static_cast<int>(3 + seed * 7 % 40) : -1;
      Survivors survivors(rank.world, seed, dies_at);
      if (std::string wrong = survivors.LoseOne(); !wrong.empty()) return wrong;
      if (survivors.group()->size() != 3) return "3 should be left";
      // Then the last of them dies too.
      Survivors fewer(survivors.group(), seed + 100, survivors.group()->rank() == 2 ? 5 : -1);
      if (std::string wrong = fewer.LoseOne(); !wrong.empty()) return wrong;
      return fewer.group()->size() == 2 ? "" : "2 should be left";
    });
    int ended = 0;
    for (const RankResult& result : results) {
      EXPECT_EQ(result.text, "") << "seed " << seed;
      EXPECT_FALSE(result.hung);
      ended += result.exited ? 1 : 0;
    }
    EXPECT_EQ(ended, 2) << "seed " << seed;
  }
}

// One dies in the middle of the others' shrink.
TEST(ShrinkTest, ShrinkSurvivesASecondDeath) {
  ProcessClusterOptions options;
  options.ranks = 5;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    if (rank.rank == 0) kill(getpid(), SIGKILL);
    (void)AwaitFailure(*rank.world);
    if (rank.rank == 1) {
      // The one that proposes: the others have begun, and this rank never comes.
      rank.meet("shrinking", 1);
      kill(getpid(), SIGKILL);
    }
    rank.meet("shrinking", 1);
    auto group = rank.world->Shrink();
    if (!group.ok()) return group.status().ToString();
    if ((*group)->members() != std::vector<int>({2, 3, 4})) return "other members than 2, 3 and 4";
    return Survivors((*group).get(), 7, -1).Compute(30);
  });
  for (size_t rank = 2; rank < results.size(); ++rank) EXPECT_EQ(results[rank].text, "") << rank;
}

TEST(ShrinkTest, ASurvivorThatNeverCallsIsNamed) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    if (rank.rank == 2) kill(getpid(), SIGKILL);
    (void)AwaitFailure(*rank.world);
    std::string wrong;
    if (rank.rank == 1) {
      const auto group = rank.world->Shrink(std::chrono::milliseconds(300));
      const std::string text(group.status().message());
      if (!absl::IsDeadlineExceeded(group.status()) || text.find("rank 0") == std::string::npos) wrong = text;
    }
    rank.meet("end", 2);
    return wrong;
  });
  EXPECT_EQ(results[1].text, "");
}

// It is in no news of deaths, and will never call. Its black box is full of other calls by then.
TEST(ShrinkTest, AMemberThatEndedInOrderIsNotWaitedFor) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    for (int i = 0; i < 600; ++i) (void)rank.world->Barrier().Wait();
    if (rank.rank == 0) (void)rank.runtime->Finalize();  // which may know of the death
    if (rank.rank == 0) return "";
    if (rank.rank == 2) kill(getpid(), SIGKILL);
    (void)AwaitFailure(*rank.world);
    std::string wrong;
    for (int i = 0; i < 2; ++i) {  // and so it stays
      const auto start = std::chrono::steady_clock::now();
      const auto group = rank.world->Shrink(std::chrono::seconds(50));
      const std::string text = group.ok() ? "shrunk" : group.status().ToString();
      if (!absl::IsUnavailable(group.status()) || text.find("rank 0") == std::string::npos) wrong += text + "\n";
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) wrong += "not told in time\n";
    }
    return wrong;
  });
  EXPECT_EQ(results[0].text, "");
  EXPECT_EQ(results[1].text, "");
}

// A rank that tries again after its time was up meets a late one, though both started at different attempts.
TEST(ShrinkTest, ARankThatTriesAgainMeetsALateOne) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    if (rank.rank == 2) kill(getpid(), SIGKILL);
    (void)AwaitFailure(*rank.world);
    if (rank.rank == 1) {  // waits for the proposal of rank 0, twice
      for (int i = 0; i < 2; ++i) {
        const auto group = rank.world->Shrink(std::chrono::milliseconds(100));
        if (group.ok() || !absl::IsDeadlineExceeded(group.status())) return "shrink should not have ended well";
      }
    }
    rank.meet("late", 2);
    auto group = rank.world->Shrink(std::chrono::seconds(30));
    if (!group.ok()) return group.status().ToString();
    return Survivors((*group).get(), 7, -1).Compute(30);
  });
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(results[rank].text, "") << rank;
}

// More often than failures of groups are remembered; and who is late calls once.
TEST(ShrinkTest, ALateRankMeetsOneThatHasTriedManyTimes) {
  ProcessClusterOptions options;
  options.ranks = 3;
  constexpr int kAttempts = 80;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    if (rank.rank == 2) kill(getpid(), SIGKILL);
    (void)AwaitFailure(*rank.world);
    if (rank.rank == 0) {  // the one that proposes: its attempts end in the group that it made
      for (int i = 0; i < kAttempts; ++i) {
        const auto group = rank.world->Shrink(std::chrono::milliseconds(15));
        if (group.ok() || !absl::IsDeadlineExceeded(group.status())) return "shrink should not have ended well";
      }
    }
    rank.meet("late", 2);
    auto group = rank.world->Shrink(std::chrono::seconds(30));
    if (!group.ok()) return group.status().ToString();
    return Survivors((*group).get(), 7, -1).Compute(30);
  });
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(results[rank].text, "") << rank;
}

// Deaths are learned in different orders, by the seed, and every survivor ends in the same group.
TEST(ShrinkSimTest, AllSurvivorsGetTheSameMembers) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimClusterOptions options;
    options.ranks = 4 + static_cast<int>(seed % 4);
    options.nodes = 1 + static_cast<int>(seed % 2);
    options.network.seed = seed;
    SimCluster cluster(options);
    const int first = static_cast<int>(seed % static_cast<uint64_t>(options.ranks));
    const int second = static_cast<int>((seed / 3) % static_cast<uint64_t>(options.ranks));
    std::vector<std::string> wrong(static_cast<size_t>(options.ranks));
    std::vector<std::vector<int>> members(static_cast<size_t>(options.ranks));
    cluster.Run([&](SimRank& rank) {
      const auto me = static_cast<size_t>(rank.rank);
      if (rank.rank == first || rank.rank == second) {
        rank.Poll(static_cast<int>(seed * (rank.rank == first ? 7 : 31) % 150));
        rank.Die("rank " + std::to_string(rank.rank) + " is dead");
        return;
      }
      (void)AwaitFailure(*rank.world);
      auto group = rank.world->Shrink();
      while (group.ok() && (*group)->size() > options.ranks - (first == second ? 1 : 2)) {
        (void)AwaitFailure(**group);
        group = (*group)->Shrink();
      }
      if (!group.ok()) {
        wrong[me] = group.status().ToString();
        return;
      }
      members[me] = (*group)->members();
      wrong[me] = Survivors(group->get(), seed, -1).Compute(10);
    });
    std::vector<int> expected;
    for (int rank = 0; rank < options.ranks; ++rank) {
      if (rank != first && rank != second) expected.push_back(rank);
    }
    for (const int rank : expected) {
      ASSERT_EQ(wrong[static_cast<size_t>(rank)], "") << "seed " << seed;
      ASSERT_EQ(members[static_cast<size_t>(rank)], expected) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace cohort::testing
