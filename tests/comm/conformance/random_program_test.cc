// Random programs: all ranks draw the same program from a seed (collectives, messages, splits, subgroups; waited for at
// once or later, in any order) and run it over the simulated transport; every result is compared with the reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/comm/conformance/random_walk.h"
#include "tests/support/in_processes.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

// Returns what was wrong with the program of this seed, or "".
std::string RunSimulated(uint64_t seed) {
  SimClusterOptions options;
  options.ranks = 1 + static_cast<int>(seed % 7);
  options.nodes = options.ranks >= 4 ? 2 : 1;
  options.network.seed = seed;
  options.network.eager_bytes = seed % 3 == 0 ? 0 : 256;
  options.network.fanout_bytes = seed % 2 == 0 ? 0 : 512;
  SimCluster cluster(options);
  std::vector<std::string> wrong(static_cast<size_t>(options.ranks));
  cluster.Run([&](SimRank& rank) {
    std::string& mine = wrong[static_cast<size_t>(rank.rank)];
    mine = Walk(rank.world, rank.rank, seed).Run(30);
    if (!mine.empty()) rank.world->Abort(mine);
  });
  std::string all;
  for (const std::string& text : wrong) all += text;
  return all;
}

TEST(RandomProgramTest, RandomProgramsAreRightOverTheSimulatedTransport) {
  EXPECT_EQ(ForEachInProcesses(1, static_cast<uint64_t>(Trials(2'000, 200'000)), RunSimulated), "") << "by seed";
}

TEST(RandomProgramTest, RandomProgramsAreRightBetweenProcesses) {
  const bool hosts_talk = WhyHostsCannotTalk().empty();
  const auto programs = static_cast<uint64_t>(Trials(8, 800));
  for (uint64_t seed = 1; seed <= programs; ++seed) {
    ProcessClusterOptions options;
    options.ranks = 2 + static_cast<int>(seed % 5);
    options.nodes = hosts_talk && seed % 4 == 0 ? 2 : 1;
    options.progress_thread = seed % 2 == 0;
    const std::vector<RankResult> results = RunProcesses(options, [seed](ProcessRank& rank) {
      std::string wrong = Walk(rank.world, rank.rank, seed).Run(300);
      if (!wrong.empty()) rank.world->Abort(wrong);
      return wrong;
    });
    for (const RankResult& result : results) ASSERT_EQ(result.text, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::testing
