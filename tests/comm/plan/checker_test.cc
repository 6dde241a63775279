// The checker against plans that are wrong: chosen ones, and random damage compared with what really happens.
#include "cohort/comm/plan/checker.h"

#include <random>
#include <string>
#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/comm/plan/interpreter.h"

namespace cohort::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<Plan> PlansOf(CollectiveKind kind, std::string_view name, int size, int32_t pieces, bool in_place = false,
                          int root = -1) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < size; ++rank) {
    auto plan = BuildPlan(*FindAlgorithm(kind, name), {kind, size, rank, root, in_place, pieces});
    EXPECT_TRUE(plan.ok()) << plan.status();
    plans.push_back(*std::move(plan));
  }
  return plans;
}

std::vector<Step>& StepsOf(std::vector<Plan>& plans, size_t rank) { return plans[rank].lanes[0].steps; }

std::string Refusal(const std::vector<Plan>& plans) {
  const auto report = CheckPlans(plans);
  if (report.ok()) return "accepted";
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(report.status().message());
}

TEST(CheckerTest, NamesRankLaneAndStep) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "ring", 4, 4);
  StepsOf(plans, 2)[1].src.first += 1;
  StepsOf(plans, 2)[1].dst.first += 1;
  EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("rank 2, lane 0, step 1"), HasSubstr("recv_reduce")));
}

// The runner knows one target of a fold of own memory, and folds others' memory where the plan opens.
TEST(CheckerTest, RefusesAFoldOfOwnMemoryWithSeveralTargets) {
  const auto folded = [] {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 3; ++rank) {
      const PlanRequest request{CollectiveKind::kAllReduce, 3, rank, -1, false, 3, nullptr, /*fold_once=*/true};
      plans.push_back(*BuildPlan(*FindAlgorithm(CollectiveKind::kAllReduce, "flat"), request));
    }
    return plans;
  };
  auto plans = folded();
  EXPECT_EQ(Refusal(plans), "accepted");
  Plan& plan = plans[1];
  Step& fold = plan.lanes[0].steps.back();
  ASSERT_EQ(fold.kind, StepKind::kFold);
  plan.operands.push_back({1, {BufferId::kScratch, plan.scratch_chunks, 3}});
  plan.scratch_chunks += 3;
  fold.targets = 2;
  EXPECT_NE(Refusal(plans), "accepted");
  plans = folded();
  plans[1].opens = true;
  EXPECT_THAT(Refusal(plans), HasSubstr("says wrongly whether it opens"));
}

TEST(CheckerTest, RefusesADroppedSend) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "ring", 4, 4);
  StepsOf(plans, 1).erase(StepsOf(plans, 1).begin());
  EXPECT_NE(Refusal(plans), "accepted");
}

TEST(CheckerTest, RefusesAMessageThatNobodyReceives) {
  auto plans = PlansOf(CollectiveKind::kGather, "flat", 3, 1, false, 0);
  StepsOf(plans, 2).push_back(StepsOf(plans, 2)[0]);
  EXPECT_THAT(Refusal(plans), HasSubstr("never receives 1 messages of rank 2"));
}

TEST(CheckerTest, RefusesSwappedPeers) {
  auto plans = PlansOf(CollectiveKind::kAllToAll, "flat", 4, 1);
  std::swap(StepsOf(plans, 0)[0].peer, StepsOf(plans, 0)[1].peer);
  EXPECT_THAT(Refusal(plans), HasSubstr("ends with"));
}

TEST(CheckerTest, RefusesARemovedFence) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 3, 1, true);
  auto& steps = StepsOf(plans, 1);
  ASSERT_EQ(steps.back().sends_before, 1);
  steps.back().sends_before = 0;
  EXPECT_THAT(Refusal(plans), HasSubstr("may still be reading"));
}

TEST(CheckerTest, RefusesAFenceThatCannotBeReached) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 3, 1, true);
  StepsOf(plans, 1).back().sends_before = 2;
  EXPECT_THAT(Refusal(plans), HasSubstr("waits for 2 sends"));
}

TEST(CheckerTest, RefusesADuplicatedReduce) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 4, 1);
  auto& steps = StepsOf(plans, 3);
  ASSERT_EQ(steps.back().kind, StepKind::kReduce);
  steps.push_back(steps.back());
  steps.back().src = steps.back().dst;
  EXPECT_THAT(Refusal(plans), HasSubstr("twice"));
}

TEST(CheckerTest, RefusesTwoRanksThatWaitForEachOther) {
  auto plans = PlansOf(CollectiveKind::kAllGather, "recursive_doubling", 2, 1, true);
  for (size_t rank : {0u, 1u}) std::swap(StepsOf(plans, rank)[0], StepsOf(plans, rank)[1]);
  EXPECT_THAT(Refusal(plans), HasSubstr("waits for ever for a message of rank 1"));
}

// A send may take as long as its receiver: two ranks that overwrite what they send before they receive stand still.
TEST(CheckerTest, RefusesPlansThatNeedBufferedSends) {
  auto plans = PlansOf(CollectiveKind::kAllToAll, "flat", 2, 1, true);
  for (Plan& plan : plans) {
    auto& steps = plan.lanes[0].steps;
    ASSERT_EQ(steps.size(), 3u);  // send, recv into scratch, copy
    steps[1].dst = steps[2].dst;
    steps[1].sends_before = 1;
    steps.pop_back();
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("waits for ever for its first 1 sends"));
}

TEST(CheckerTest, RefusesReadingWhatNothingWrote) {
  auto plans = PlansOf(CollectiveKind::kBroadcast, "binomial", 4, 1, false, 0);
  auto& steps = StepsOf(plans, 2);
  std::swap(steps[0], steps[1]);
  EXPECT_THAT(Refusal(plans), HasSubstr("which nothing has written"));
}

TEST(CheckerTest, RefusesWritingTheInput) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 2, 1);
  StepsOf(plans, 0)[1].dst.buffer = BufferId::kIn;
  EXPECT_THAT(Refusal(plans), HasSubstr("writes the caller's input"));
}

TEST(CheckerTest, RefusesSlicesOutsideTheirBuffer) {
  auto plans = PlansOf(CollectiveKind::kAllGather, "ring", 3, 2);
  StepsOf(plans, 0)[0].src.chunks = 3;
  EXPECT_THAT(Refusal(plans), HasSubstr("reaches outside in, which has 2 chunks"));
}

TEST(CheckerTest, RefusesMovesBetweenPiecesOfDifferentLengths) {
  auto plans = PlansOf(CollectiveKind::kAllGather, "ring", 2, 2);
  for (Plan& plan : plans) plan.lanes[0].steps = {};
  StepsOf(plans, 0).push_back({.kind = StepKind::kCopy, .src = {BufferId::kIn, 0, 1}, .dst = {BufferId::kOut, 1, 1}});
  EXPECT_THAT(Refusal(plans), HasSubstr("different lengths"));
}

TEST(CheckerTest, RefusesAPublishTakenForASend) {
  auto plans = PlansOf(CollectiveKind::kAllGather, "flat", 3, 1);
  for (Step& step : StepsOf(plans, 1)) {
    if (step.kind == StepKind::kRecv) step.published = false;
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("expects a send"));
}

TEST(CheckerTest, RefusesABarrierThatMissesARank) {
  auto plans = PlansOf(CollectiveKind::kBarrier, "dissemination", 4, 1);
  for (Plan& plan : plans) plan.lanes[0].steps.resize(2);
  EXPECT_THAT(Refusal(plans), HasSubstr("leaves the barrier before rank"));
}

TEST(CheckerTest, RefusesLanesThatShareMemory) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 2, 1);
  for (Plan& plan : plans) plan.lanes.push_back({});
  plans[0].lanes[1].steps.push_back(
      {.kind = StepKind::kCopy, .src = {BufferId::kIn, 0, 1}, .dst = {BufferId::kOut, 0, 1}});
  EXPECT_THAT(Refusal(plans), HasSubstr("another lane"));
}

TEST(CheckerTest, RefusesPlansOfDifferentOperations) {
  auto plans = PlansOf(CollectiveKind::kBroadcast, "flat", 3, 1, false, 0);
  plans[2].root = 1;
  EXPECT_THAT(Refusal(plans), HasSubstr("differs"));
  EXPECT_THAT(Refusal({}), HasSubstr("no plans"));
}

TEST(CheckerTest, ReportsDifferentAssociations) {
  auto plans = PlansOf(CollectiveKind::kAllReduce, "flat", 2, 1);
  StepsOf(plans, 1)[1].incoming_first = false;
  const auto report = CheckPlans(plans);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->same_association);
}

void Damage(std::vector<Plan>& plans, std::mt19937_64& random) {
  Plan& plan = plans[random() % plans.size()];
  auto& steps = plan.lanes[0].steps;
  if (steps.empty()) return;
  const size_t at = random() % steps.size();
  Step& step = steps[at];
  Slice& slice = random() % 2 == 0 ? step.src : step.dst;
  switch (random() % 9) {
    case 0:
      steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      step.peer = static_cast<int32_t>(random() % plans.size());
      break;
    case 2:
      slice.first += random() % 2 == 0 ? plan.pieces : 1;
      break;
    case 3:
      slice.chunks += random() % 2 == 0 ? 1 : -1;
      break;
    case 4:
      step.sends_before = static_cast<int32_t>(random() % 3);
      break;
    case 5:
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), Step(step));
      break;
    case 6:
      std::swap(step, steps[random() % steps.size()]);
      break;
    case 7:
      slice.buffer = static_cast<BufferId>(random() % 3);
      break;
    case 8:
      step.published = !step.published;
      break;
  }
}

std::string TextOf(const std::vector<Plan>& plans) {
  std::string text;
  for (const Plan& plan : plans) text += plan.DebugString();
  return text;
}

// Whatever the checker accepts really works: with several counts and in several orders of events.
void ExpectWorks(const std::vector<Plan>& plans, uint64_t seed, const std::string& what) {
  for (const int64_t count : {0, 1, 7, 24}) {
    for (uint64_t order = 0; order < 3; ++order) {
      NumericRun run(plans, count, seed * 16 + order);
      EXPECT_EQ(run.Run(), "") << what << ", " << count << " elements, seed " << seed;
    }
  }
}

TEST(CheckerTest, RefusesASliceThatSpansUnequalBlocks) {
  auto plans = PlansOf(CollectiveKind::kAllGatherV, "ring", 4, 2);
  StepsOf(plans, 1)[0].src = {BufferId::kOut, 1, 2};
  EXPECT_THAT(Refusal(plans), HasSubstr("spans blocks that need not lie together"));
}

TEST(CheckerTest, RefusesAMessageForAnUnequalBlock) {
  auto plans = PlansOf(CollectiveKind::kAllToAllV, "flat", 3, 1);
  for (Step& step : StepsOf(plans, 0)) {
    if (step.kind == StepKind::kRecv) step.dst.first = 3 - step.dst.first;  // that of rank 1 into block 2
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("expects a block of another length"));
}

TEST(CheckerTest, RefusesALocalCopyBetweenUnequalBlocks) {
  auto plans = PlansOf(CollectiveKind::kGatherV, "flat", 3, 1, false, 0);
  for (Step& step : StepsOf(plans, 0)) {
    if (step.kind == StepKind::kCopy) step.dst.first = 1;
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("moves between blocks of different lengths"));
}

TEST(CheckerTest, RefusesScratchOfUnknownLength) {
  auto plans = PlansOf(CollectiveKind::kAllToAllV, "pairwise", 3, 1, true);
  plans[2].scratch_like.pop_back();
  EXPECT_THAT(Refusal(plans), HasSubstr("scratch memory of unknown length"));
}

TEST(CheckerPropertyTest, UndamagedPlansWork) {
  uint64_t seed = 0;
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      if (!CheckRequirements(algorithm, size).ok()) continue;
      for (const bool in_place : {false, true}) {
        const auto plans = PlansOf(algorithm.kind, algorithm.name, size, size, in_place, size / 2);
        ExpectWorks(plans, ++seed, plans[0].DebugString());
      }
    }
  }
}

TEST(CheckerPropertyTest, AcceptedDamageIsHarmless) {
  std::random_device entropy;
  const uint64_t first_seed = entropy();
  int refused = 0;
  int accepted = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 6000; ++seed) {
    std::mt19937_64 random(seed);
    const AlgorithmInfo& algorithm = Algorithms()[random() % Algorithms().size()];
    const int size = algorithm.traits.power_of_two ? 4 : 2 + static_cast<int>(random() % 5);
    auto plans = PlansOf(algorithm.kind, algorithm.name, size, 1 + static_cast<int32_t>(random() % 4),
                         random() % 2 == 0, static_cast<int>(random() % static_cast<uint64_t>(size)));
    const std::string before = TextOf(plans);
    Damage(plans, random);
    if (TextOf(plans) == before) continue;
    if (!CheckPlans(plans).ok()) {
      ++refused;
      continue;
    }
    ++accepted;
    ExpectWorks(plans, seed, "damaged " + std::string(Name(algorithm.kind)) + " " + std::string(algorithm.name));
    if (HasFailure()) return;
  }
  // Damage that does not matter is rare: a fence more, the association, empty messages of barriers.
  EXPECT_GT(refused, 3 * accepted) << "first seed " << first_seed;
}

}  // namespace
}  // namespace cohort::comm
