// Compositions of two levels: every pair of algorithms, proved by the checker for many placements, at most as dear as
// their parts together.
#include "cohort/comm/algorithm/composition.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cohort/comm/plan/checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/nightly.h"

namespace cohort::comm {
namespace {

using ::testing::HasSubstr;

std::vector<AlgorithmInfo> Compositions() {
  std::vector<AlgorithmInfo> compositions;
  for (const AlgorithmInfo& algorithm : AllAlgorithms()) {
    if (algorithm.composition != nullptr) compositions.push_back(algorithm);
  }
  return compositions;
}

// Rank by rank the name of its node. Equal and unequal nodes, ranks in order, in turn and in disorder.
const std::vector<std::vector<int>>& Placements() {
  static const auto& placements = *new std::vector<std::vector<int>>{
      {0, 0, 1, 1},
      {0, 1, 0, 1},
      {1, 1, 0},
      {0, 1, 1},
      {0, 0, 0, 1, 1, 1},
      {5, 3, 5, 3, 4, 4},
      {0, 0, 0, 0, 1},
      {2, 0, 1, 0, 2, 1, 0},
      {0, 0, 1, 1, 2, 2},
      {0, 0, 1, 1, 2, 2, 3, 3},
      {0, 1, 2, 2, 1, 0, 1, 2, 0},
  };
  return placements;
}

std::string Describe(const AlgorithmInfo& algorithm, const std::vector<int>& nodes, int root, int32_t pieces, int way) {
  std::string text = std::string(Name(algorithm.kind)) + " " + std::string(algorithm.name) + ", nodes";
  for (const int node : nodes) text += " " + std::to_string(node);
  return text + ", root " + std::to_string(root) + ", " + std::to_string(pieces) + " pieces, in place " +
         (way == 0   ? "nowhere"
          : way == 1 ? "everywhere"
                     : "on odd ranks");
}

absl::StatusOr<std::vector<Plan>> BuildAll(const AlgorithmInfo& algorithm, const Placement& placement, int root,
                                           int32_t pieces, int way) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < placement.size(); ++rank) {
    PlanRequest request{algorithm.kind, placement.size(), rank, root, way == 1 || (way == 2 && rank % 2 == 1), pieces};
    request.placement = &placement;
    absl::StatusOr<Plan> plan = BuildPlan(algorithm, request);
    if (!plan.ok()) return plan.status();
    plans.push_back(*std::move(plan));
  }
  return plans;
}

void Prove(const AlgorithmInfo& algorithm, const std::vector<int>& nodes, int root, int32_t pieces, int way) {
  const std::string what = Describe(algorithm, nodes, root, pieces, way);
  const Placement placement(nodes);
  const auto plans = BuildAll(algorithm, placement, root, pieces, way);
  ASSERT_TRUE(plans.ok()) << what << ": " << plans.status();
  const auto report = CheckPlans(*plans);
  ASSERT_TRUE(report.ok()) << what << ": " << report.status();
  ASSERT_TRUE(report->same_association) << what;
  int64_t rounds = 0;
  double chunks = 0;
  for (const Phase& phase : PhasesOf(algorithm, placement.shape(), pieces)) {
    const AlgorithmCost cost = phase.algorithm->cost({.size = phase.size, .pieces = phase.pieces, .fanout = false});
    rounds += cost.rounds;
    // Publishes are sent to each: as many chunks go out as others come in.
    const int64_t published = phase.algorithm->traits.uses_publish ? int64_t{phase.size - 1} * phase.pieces : 0;
    chunks += static_cast<double>(std::max(cost.chunks, published)) * phase.blocks * pieces / phase.pieces;
  }
  ASSERT_LE(report->rounds, rounds) << what;
  const NodeShape& shape = placement.shape();
  if (pieces % PartsOf(algorithm, placement.size(), shape) == 0) {
    ASSERT_LE(report->chunks, chunks + 1e-6) << what;
  }
}

class CompositionTest : public ::testing::TestWithParam<AlgorithmInfo> {};

TEST_P(CompositionTest, EveryCompositionIsCorrectForEveryPlacementAndNoDearerThanItsParts) {
  const AlgorithmInfo& algorithm = GetParam();
  int proved = 0;
  for (const std::vector<int>& nodes : Placements()) {
    const Placement placement(nodes);
    const int size = placement.size();
    if (!CheckRequirements(algorithm, size, placement.shape()).ok()) continue;
    const int parts = PartsOf(algorithm, size, placement.shape());
    for (const int32_t pieces : std::set<int32_t>{1, 3, parts}) {
      for (int root = IsRooted(algorithm.kind) ? 0 : -1; root < (IsRooted(algorithm.kind) ? size : 0); root += 2) {
        for (const int way : {0, 1, 2}) {
          ASSERT_NO_FATAL_FAILURE(Prove(algorithm, nodes, root, pieces, way));
          ++proved;
        }
      }
    }
  }
  EXPECT_GT(proved, 0);
}

// Drawn placements, to 64 ranks; nightly to 512.
TEST_P(CompositionTest, EveryCompositionIsCorrectInLargerGroups) {
  const AlgorithmInfo& algorithm = GetParam();
  const uint32_t seed = 7919 + algorithm.id;
  std::mt19937 random(seed);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  const int trials = static_cast<int>(testing::Trials(1, 6));
  for (int trial = 0; trial < trials; ++trial) {
    const bool equal = algorithm.composition->scheme == Scheme::kShared || draw(0, 1) == 0 ||
                       !CheckRequirements(algorithm, 5, {2, 2, 3}).ok();
    int count = draw(2, testing::Nightly() ? 32 : 8);
    if (algorithm.composition->outer->traits.power_of_two) count = 4;
    const int most = draw(2, testing::Nightly() ? 16 : 8);
    std::vector<int> nodes;
    for (int node = 0; node < count; ++node) {
      nodes.insert(nodes.end(), static_cast<size_t>(equal || node == 0 ? most : draw(1, most)), node);
    }
    if (draw(0, 1) == 1) std::shuffle(nodes.begin(), nodes.end(), random);
    const int size = static_cast<int>(nodes.size());
    const Placement placement(nodes);
    if (!CheckRequirements(algorithm, size, placement.shape()).ok()) continue;
    const int32_t pieces = draw(0, 1) == 0 ? 1 : PartsOf(algorithm, size, placement.shape());
    ASSERT_NO_FATAL_FAILURE(
        Prove(algorithm, nodes, IsRooted(algorithm.kind) ? draw(0, size - 1) : -1, pieces, draw(0, 2)))
        << "seed " << seed;
  }
}

std::string TestName(const ::testing::TestParamInfo<AlgorithmInfo>& info) {
  std::string name = std::string(Name(info.param.kind)) + "_" + std::string(info.param.name);
  for (char& c : name) {
    if (c == ':' || c == '+') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, CompositionTest, ::testing::ValuesIn(Compositions()), TestName);

}  // namespace
}  // namespace cohort::comm
