// Every registered algorithm, proved by the checker, with rounds and volume as its formulas say: for some sizes to 33,
// nightly for all to 64 and random ones to 1,024.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/checker.h"
#include "cohort/comm/request.h"
#include "gtest/gtest.h"
#include "tests/support/nightly.h"

namespace cohort::comm {
namespace {

enum class InPlace { kNone, kAll, kMixed };

std::string Describe(const AlgorithmInfo& algorithm, int size, int root, int32_t pieces, InPlace in_place) {
  return std::string(Name(algorithm.kind)) + " " + std::string(algorithm.name) + ", " + std::to_string(size) +
         " ranks, root " + std::to_string(root) + ", " + std::to_string(pieces) + " pieces, in place " +
         (in_place == InPlace::kNone  ? "nowhere"
          : in_place == InPlace::kAll ? "everywhere"
                                      : "on odd ranks");
}

std::vector<int> RootsFor(CollectiveKind kind, int size) {
  if (!IsRooted(kind)) return {-1};
  std::vector<int> roots;
  if (size <= 9) {
    for (int root = 0; root < size; ++root) roots.push_back(root);
    return roots;
  }
  return {0, 1, size / 2, size - 1};
}

std::vector<int> Sizes() {
  std::vector<int> sizes;
  const int all_to = static_cast<int>(testing::Trials(17, 64));
  for (int size = 1; size <= all_to; ++size) sizes.push_back(size);
  if (all_to < 32) sizes.insert(sizes.end(), {32, 33});
  return sizes;
}

std::vector<int32_t> PiecesFor(int size) {
  std::set<int32_t> pieces = {1, 2, 3, size, 2 * size + 1};
  return {pieces.begin(), pieces.end()};
}

std::vector<Plan> BuildAll(const AlgorithmInfo& algorithm, int size, int root, int32_t pieces, InPlace in_place,
                           bool fold_once = false) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < size; ++rank) {
    const bool here = in_place == InPlace::kAll || (in_place == InPlace::kMixed && rank % 2 == 1);
    auto plan = BuildPlan(algorithm, {algorithm.kind, size, rank, root, here, pieces, nullptr, fold_once});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) plans.push_back(*std::move(plan));
  }
  return plans;
}

bool Combines(const Plan& plan) {
  return std::any_of(plan.lanes.begin(), plan.lanes.end(), [](const Lane& lane) {
    return std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) {
      return step.kind == StepKind::kRecvReduce || step.kind == StepKind::kReduce;
    });
  });
}

class AlgorithmTest : public ::testing::TestWithParam<AlgorithmInfo> {};

void Prove(const AlgorithmInfo& algorithm, int size, int root, int32_t pieces, InPlace in_place,
           bool fold_once = false) {
  SCOPED_TRACE(Describe(algorithm, size, root, pieces, in_place) + (fold_once ? ", folded once" : ""));
  const AlgorithmCost cost = algorithm.cost({.size = size, .pieces = pieces, .fanout = true});
  const std::vector<Plan> plans = BuildAll(algorithm, size, root, pieces, in_place, fold_once);
  ASSERT_FALSE(fold_once && std::any_of(plans.begin(), plans.end(), Combines));
  const auto report = CheckPlans(plans);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_LE(report->rounds, cost.rounds);
  if (!algorithm.traits.one_port_rounds) {
    ASSERT_EQ(report->rounds, cost.rounds);
  }
  // Parts are unequal where the pieces are no multiple of the size; the formula then rounds up.
  if (pieces % PartsOf(algorithm, size) != 0) {
    ASSERT_LE(report->chunks, cost.chunks);
  } else {
    ASSERT_EQ(report->chunks, cost.chunks);
  }
  ASSERT_TRUE(report->rank_order || !algorithm.traits.rank_order) << Describe(algorithm, size, root, pieces, in_place);
  ASSERT_TRUE(report->same_association);
}

TEST_P(AlgorithmTest, EveryAlgorithmIsCorrectAndCostsWhatItsFormulaSays) {
  const AlgorithmInfo& algorithm = GetParam();
  for (const int size : Sizes()) {
    if (!CheckRequirements(algorithm, size).ok()) continue;
    for (const int32_t pieces : PiecesFor(size)) {
      for (const int root : RootsFor(algorithm.kind, size)) {
        for (const InPlace in_place : {InPlace::kNone, InPlace::kAll, InPlace::kMixed}) {
          ASSERT_NO_FATAL_FAILURE(Prove(algorithm, size, root, pieces, in_place));
          if (!algorithm.traits.folds_once) continue;
          ASSERT_NO_FATAL_FAILURE(Prove(algorithm, size, root, pieces, in_place, /*fold_once=*/true));
        }
      }
    }
  }
}

TEST_P(AlgorithmTest, CombinesInTheOrderOfRanksExactlyWhereItSaysSo) {
  const AlgorithmInfo& algorithm = GetParam();
  if (!Reduces(algorithm.kind)) return;
  bool rank_order = true;
  for (const int size : {2, 3, 5, 8}) {
    if (!CheckRequirements(algorithm, size).ok()) continue;
    for (const int32_t pieces : PiecesFor(size)) {
      for (const int root : RootsFor(algorithm.kind, size)) {
        const auto report = CheckPlans(BuildAll(algorithm, size, root, pieces, InPlace::kMixed));
        ASSERT_TRUE(report.ok()) << report.status();
        rank_order = rank_order && report->rank_order;
      }
    }
  }
  EXPECT_EQ(rank_order, algorithm.traits.rank_order);
}

// The checker's time and memory grow with the chunks that all ranks hold, up to size^2 times the pieces: here, pieces
// are one, as many as the algorithm has parts, and, where a rank holds no block for each other, a few; one root and one
// way to be in place are drawn for each proof. The bound is 1,024 ranks for every algorithm.
TEST_P(AlgorithmTest, EveryAlgorithmIsCorrectInLargeGroups) {
  const AlgorithmInfo& algorithm = GetParam();
  const uint32_t seed = 2026 + algorithm.id;
  std::mt19937 random(seed);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  std::vector<int> sizes = {draw(34, 64)};
  if (algorithm.traits.power_of_two) sizes = {64};
  if (testing::Nightly()) {
    sizes = {draw(65, 256), draw(257, 600), draw(601, 1023), 1024};
    if (algorithm.traits.power_of_two) sizes = {128, 256, 512, 1024};
  }
  for (const int size : sizes) {
    if (!CheckRequirements(algorithm, size).ok()) continue;
    std::set<int32_t> all_pieces = {1, PartsOf(algorithm, size)};
    if (!HasBlockPerRank(algorithm.kind)) all_pieces.insert(draw(2, 9));
    for (const int32_t pieces : all_pieces) {
      const int root = IsRooted(algorithm.kind) ? draw(0, size - 1) : -1;
      const auto in_place = static_cast<InPlace>(draw(0, 2));
      const auto start = std::chrono::steady_clock::now();
      ASSERT_NO_FATAL_FAILURE(Prove(algorithm, size, root, pieces, in_place)) << "seed " << seed;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (!testing::Nightly()) continue;
      std::printf("%s: %.1f s (seed %u)\n", Describe(algorithm, size, root, pieces, in_place).c_str(), took.count(),
                  seed);
      std::fflush(stdout);
    }
  }
}

TEST_P(AlgorithmTest, PublishesOnlyWhereItSaysSo) {
  const AlgorithmInfo& algorithm = GetParam();
  bool publishes = false;
  for (const Plan& plan : BuildAll(algorithm, 4, IsRooted(algorithm.kind) ? 1 : -1, 4, InPlace::kNone)) {
    for (const Lane& lane : plan.lanes) {
      for (const Step& step : lane.steps) publishes = publishes || step.kind == StepKind::kPublish;
    }
  }
  EXPECT_EQ(publishes, algorithm.traits.uses_publish);
}

// Whether a call is in place is its rank's own affair: nothing that others see may depend on it.
TEST_P(AlgorithmTest, SendsTheSameMessagesInPlace) {
  const AlgorithmInfo& algorithm = GetParam();
  const auto messages = [](const Plan& plan) {
    std::vector<std::string> list;
    for (const Step& step : plan.lanes[0].steps) {
      if (step.kind == StepKind::kReduce || step.kind == StepKind::kCopy || step.kind == StepKind::kFold) continue;
      const bool send = step.kind == StepKind::kSend || step.kind == StepKind::kPublish;
      const Slice& slice = send ? step.src : step.dst;
      list.push_back(std::to_string(send) + " " + std::to_string(step.peer) + " " + std::to_string(slice.chunks) + " " +
                     std::to_string(slice.first % plan.pieces));
    }
    return list;
  };
  for (const int size : {2, 4, 8}) {
    const int root = IsRooted(algorithm.kind) ? size - 1 : -1;
    const std::vector<Plan> apart = BuildAll(algorithm, size, root, size, InPlace::kNone);
    const std::vector<Plan> in_place = BuildAll(algorithm, size, root, size, InPlace::kAll);
    for (size_t r = 0; r < apart.size(); ++r) EXPECT_EQ(messages(apart[r]), messages(in_place[r])) << "rank " << r;
  }
}

std::string TestName(const ::testing::TestParamInfo<AlgorithmInfo>& info) {
  return std::string(Name(info.param.kind)) + "_" + std::string(info.param.name);
}

INSTANTIATE_TEST_SUITE_P(All, AlgorithmTest, ::testing::ValuesIn(Algorithms().begin(), Algorithms().end()), TestName);

TEST(RegistryTest, EveryCollectiveHasAFlatAlgorithmForAnySize) {
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    const AlgorithmInfo* flat = FindAlgorithm(static_cast<CollectiveKind>(kind), "flat");
    ASSERT_NE(flat, nullptr) << kind;
    EXPECT_TRUE(CheckRequirements(*flat, 7).ok());
  }
}

TEST(RegistryTest, IdFindsTheAlgorithm) {
  for (const AlgorithmInfo& algorithm : AllAlgorithms()) EXPECT_EQ(FindAlgorithm(algorithm.id), &algorithm);
  EXPECT_EQ(FindAlgorithm(0), nullptr);
}

TEST(RegistryTest, RefusesRequestsThatDoNotFit) {
  const AlgorithmInfo& broadcast = *FindAlgorithm(CollectiveKind::kBroadcast, "flat");
  const PlanRequest good = {CollectiveKind::kBroadcast, 4, 1, 2, false, 1};
  EXPECT_TRUE(BuildPlan(broadcast, good).ok());
  PlanRequest bad = good;
  bad.kind = CollectiveKind::kReduce;
  EXPECT_EQ(BuildPlan(broadcast, bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.rank = 4;
  EXPECT_EQ(BuildPlan(broadcast, bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.root = -1;
  EXPECT_EQ(BuildPlan(broadcast, bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.pieces = 0;
  EXPECT_EQ(BuildPlan(broadcast, bad).status().code(), absl::StatusCode::kInvalidArgument);
  const AlgorithmInfo& doubling = *FindAlgorithm(CollectiveKind::kAllGather, "recursive_doubling");
  EXPECT_EQ(BuildPlan(doubling, {CollectiveKind::kAllGather, 6, 0, -1, false, 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cohort::comm
