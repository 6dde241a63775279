// Every collective, algorithm, type and op between real processes: over shared memory, over the network between
// simulated hosts, and over both at once; 1 to 9 ranks, against a serial reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/runtime/env.h"
#include "tests/comm/conformance/collective_case.h"
#include "tests/support/process_cluster.h"
#include "tests/support/short_calls.h"

namespace cohort::testing {
namespace {

using comm::Communicator;

struct Setting {
  const char* transport;
  int ranks;
  int nodes;
};

// Small calls of the selector's choice are repeated, so that they take the short way, too.
std::string RunRepeatedly(Communicator& world, CollectiveCase the_case) {
  const int runs = the_case.algorithm.empty() && the_case.count <= 61 ? 3 : 1;
  std::string wrong;
  for (int run = 0; run < runs && wrong.empty(); ++run) {
    the_case.salt += 1000;
    wrong = RunCase(world, the_case);
  }
  return wrong;
}

class ProcessConformanceTest : public ::testing::TestWithParam<Setting> {};

TEST_P(ProcessConformanceTest, CollectivesBetweenProcessesEqualTheSerialReference) {
  ProcessClusterOptions options;
  options.ranks = GetParam().ranks;
  options.nodes = GetParam().nodes;
  if (options.nodes > 1) {
    const std::string why = WhyHostsCannotTalk();
    if (!why.empty()) GTEST_SKIP() << why;
  }
  const absl::StatusOr<runtime::Environment> environment = runtime::Environment::Read();
  ASSERT_TRUE(environment.ok()) << environment.status();
  const bool over_ucx = environment->transports == "ucx";  // which has no short way
  const std::vector<CollectiveCase> cases = ConformanceCases(options.ranks, static_cast<uint64_t>(options.ranks),
                                                             (options.ranks + options.nodes - 1) / options.nodes);
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    for (const CollectiveCase& the_case : cases) {
      std::string wrong = RunRepeatedly(*rank.world, the_case);
      if (wrong.empty()) continue;
      rank.world->Abort(wrong);  // or the others would wait
      return wrong;
    }
    if (rank.size > 1 && (options.nodes == 1 || !over_ucx) && ShortCallsOf(*rank.world).all() == 0) {
      return "no call took the short way";
    }
    return std::string(rank.world->Barrier().Wait().message());
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.text, "");
    EXPECT_FALSE(result.hung);
    EXPECT_TRUE(result.exited);
  }
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (int ranks = 1; ranks <= 9; ++ranks) settings.push_back({"shm", ranks, 1});
  for (int ranks = 2; ranks <= 9; ++ranks) settings.push_back({"net", ranks, ranks});
  for (int ranks = 4; ranks <= 9; ++ranks) settings.push_back({"mixed", ranks, 2});
  return settings;
}

std::string NameOf(const ::testing::TestParamInfo<Setting>& info) {
  return std::string(info.param.transport) + "_ranks" + std::to_string(info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Settings, ProcessConformanceTest, ::testing::ValuesIn(Settings()), NameOf);

}  // namespace
}  // namespace cohort::testing
