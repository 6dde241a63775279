// Every collective, algorithm, type and op over the simulated transport, 1 to 9 ranks, against a serial reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/comm/conformance/collective_case.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

struct Setting {
  int ranks;
  int nodes;
  uint64_t seed;
  bool fanout;
};

class SimConformanceTest : public ::testing::TestWithParam<Setting> {};

TEST_P(SimConformanceTest, SimulatedCollectivesEqualTheSerialReference) {
  const Setting setting = GetParam();
  SimClusterOptions options;
  options.ranks = setting.ranks;
  options.nodes = setting.nodes;
  options.network.seed = setting.seed;
  if (!setting.fanout) options.network.fanout_bytes = 0;
  if (setting.ranks % 4 == 0) options.network.access = comm::SimAccess::kSharedOnly;
  SimCluster cluster(options);
  const std::vector<CollectiveCase> cases =
      ConformanceCases(setting.ranks, setting.seed, (setting.ranks + setting.nodes - 1) / setting.nodes);
  std::vector<std::string> wrong(static_cast<size_t>(setting.ranks));
  cluster.Run([&](SimRank& rank) {
    for (const CollectiveCase& the_case : cases) {
      std::string& mine = wrong[static_cast<size_t>(rank.rank)];
      mine = RunCase(*rank.world, the_case);
      if (mine.empty()) continue;
      rank.world->Abort(mine);  // or the others would wait
      return;
    }
  });
  for (const std::string& text : wrong) EXPECT_EQ(text, "") << "seed " << setting.seed;
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (int ranks = 1; ranks <= 9; ++ranks) {
    settings.push_back({ranks, 1 + ranks % 3 % ranks, static_cast<uint64_t>(ranks), ranks % 2 == 0});
  }
  return settings;
}

std::string NameOf(const ::testing::TestParamInfo<Setting>& info) {
  return "ranks" + std::to_string(info.param.ranks) + "_seed" + std::to_string(info.param.seed);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SimConformanceTest, ::testing::ValuesIn(Settings()), NameOf);

}  // namespace
}  // namespace cohort::testing
