#include "cohort/launcher/verdict/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cohort/launcher/verdict/steps.h"
#include "cohort/launcher/verdict/timelines.h"
#include "tests/launcher/verdict/milliseconds.h"
#include "tests/launcher/verdict/slow_programs.h"
#include "tests/launcher/verdict/world.h"

namespace cohort::launcher {
namespace {

using std::string;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr int kWorlds = 150;  // of each property

void ExpectBlamed(const absl::StatusOr<Verdict>& verdict, Verdict::Kind kind, const Slow& slow, int seed) {
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  ASSERT_EQ(verdict->kind, kind) << seed;
  ASSERT_TRUE(verdict->culprit.has_value());
  const Culprit& culprit = *verdict->culprit;
  EXPECT_THAT(culprit.ranks, ElementsAre(slow.rank)) << seed;
  EXPECT_FALSE(culprit.in_call) << seed;
  EXPECT_FALSE(culprit.waiting.empty()) << seed;
  EXPECT_THAT(culprit.waiting, Not(Contains(slow.rank))) << seed;
  EXPECT_EQ(culprit.reason.activity, slow.activity) << seed;
  EXPECT_GT(culprit.sure, 0.5) << seed;
}

TEST(VerdictTest, NamesTheRankOfASlowStep) {
  for (int seed = 0; seed < kWorlds; ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    const auto ranks = static_cast<uint32_t>(dice.From(2, 9));
    const uint64_t steps = dice.From(10, 40);
    Slow slow{.rank = static_cast<uint32_t>(dice.From(0, ranks - 1)), .step = dice.From(2, steps - 3)};
    slow.ns = dice.From(40, 200) * kMs;
    slow.activity = kActivitiesOfPrograms[dice.From(0, std::size(kActivitiesOfPrograms) - 1)];
    uint64_t usual_ns = 0;
    const History history = Replicas(&dice, ranks, steps, slow, &usual_ns);
    const absl::StatusOr<Verdict> verdict = FindVerdict(history);
    ExpectBlamed(verdict, Verdict::Kind::kSlowStep, slow, seed);
    if (HasFailure()) return;
    EXPECT_NEAR(static_cast<double>(verdict->culprit->lost_ns), static_cast<double>(slow.ns),
                0.1 * static_cast<double>(slow.ns + usual_ns))
        << seed;
    EXPECT_EQ(verdict->slow_steps, 1u) << seed;
    const absl::StatusOr<Verdict> asked = FindVerdict(history, verdict->step->number);
    ExpectBlamed(asked, Verdict::Kind::kSlowStep, slow, seed);
    if (HasFailure()) return;
  }
}

TEST(VerdictTest, NamesTheRankOfASlowStepBehindChainsOfWaits) {
  for (int seed = 0; seed < kWorlds; ++seed) {
    Dice dice(1000 + static_cast<uint64_t>(seed));
    const auto stages = static_cast<uint32_t>(dice.From(2, 5)), replicas = static_cast<uint32_t>(dice.From(1, 3));
    const uint64_t steps = dice.From(10, 25);
    Slow slow{.rank = static_cast<uint32_t>(dice.From(0, stages * replicas - 1)), .step = dice.From(2, steps - 3)};
    slow.ns = dice.From(100, 400) * kMs;
    slow.activity = kActivitiesOfPrograms[dice.From(0, std::size(kActivitiesOfPrograms) - 1)];
    uint64_t usual_ns = 0;
    const History history = Grid(&dice, stages, replicas, steps, slow, &usual_ns);
    ExpectBlamed(FindVerdict(history), Verdict::Kind::kSlowStep, slow, seed);
    if (HasFailure()) return;
  }
}

TEST(VerdictTest, NamesTheRankThatMakesEveryStepSlow) {
  for (int seed = 0; seed < kWorlds; ++seed) {
    Dice dice(2000 + static_cast<uint64_t>(seed));
    const bool grid = dice.From(0, 1) == 1;
    const auto ranks = static_cast<uint32_t>(dice.From(2, 8));
    const auto stages = static_cast<uint32_t>(dice.From(3, 5));
    Slow slow{.rank = static_cast<uint32_t>(dice.From(0, (grid ? stages : ranks) - 1)), .step = std::nullopt};
    slow.ns = dice.From(30, 120) * kMs;
    slow.activity = kActivitiesOfPrograms[dice.From(0, std::size(kActivitiesOfPrograms) - 1)];
    uint64_t usual_ns = 0;
    const uint64_t steps = dice.From(10, 30);
    const History history =
        grid ? Grid(&dice, stages, 1, steps, slow, &usual_ns) : Replicas(&dice, ranks, steps, slow, &usual_ns);
    const absl::StatusOr<Verdict> verdict = FindVerdict(history);
    ExpectBlamed(verdict, Verdict::Kind::kEveryStep, slow, seed);
    if (HasFailure()) return;
    EXPECT_EQ(verdict->slow_steps, 0u) << seed;
    const absl::StatusOr<Verdict> asked = FindVerdict(history, verdict->first_step + 3);
    ExpectBlamed(asked, Verdict::Kind::kEveryStep, slow, seed);
    if (HasFailure()) return;
  }
}

// Stages compute for as long as the clocks are apart, so that calls seem to end before what they waited for has begun.
TEST(VerdictTest, NamesTheSlowStageByClocksThatAreApart) {
  for (int seed = 0; seed < kWorlds; ++seed) {
    Dice dice(4000 + static_cast<uint64_t>(seed));
    const auto stages = static_cast<uint32_t>(dice.From(3, 5));
    Slow slow{.rank = static_cast<uint32_t>(dice.From(0, stages - 1)), .step = std::nullopt};
    slow.ns = dice.From(60, 300) * kMs;
    slow.activity = kActivitiesOfPrograms[dice.From(0, std::size(kActivitiesOfPrograms) - 1)];
    uint64_t usual_ns = 0;
    History history = Grid(&dice, stages, 1, dice.From(10, 20), slow, &usual_ns);
    SetClocksApart(&dice, 10 * kMs, &history);
    ExpectBlamed(FindVerdict(history), Verdict::Kind::kEveryStep, slow, seed);
    if (HasFailure()) return;
  }
}

TEST(VerdictTest, BlamesNobodyWhereAllAreAlike) {
  for (int seed = 0; seed < kWorlds; ++seed) {
    Dice dice(3000 + static_cast<uint64_t>(seed));
    uint64_t usual_ns = 0;
    const History history = Replicas(&dice, static_cast<uint32_t>(dice.From(2, 9)), dice.From(10, 30), {}, &usual_ns);
    const absl::StatusOr<Verdict> verdict = FindVerdict(history);
    ASSERT_TRUE(verdict.ok());
    EXPECT_EQ(verdict->kind, Verdict::Kind::kNothing) << seed << ": rank " << verdict->culprit->ranks[0];
    EXPECT_NEAR(static_cast<double>(verdict->usual_ns), static_cast<double>(usual_ns),
                0.1 * static_cast<double>(usual_ns))
        << seed;
  }
}

// Every tenth step is slow, and the scheduler delays others by little.
TEST(VerdictTest, StepsThatAreSlowByLittleAreNotToldBesideOthers) {
  World world(3);
  for (uint64_t step = 0; step < 60; ++step) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      world.Compute(rank, 11'000);
      if (rank == 1 && step % 10 == 9) world.Compute(rank, 200 * kMs, Activity::kSleeps);
      if (rank == step % 3 && step % 7 == 0) world.Compute(rank, 900'000);
      world.AllReduce(rank, World::All(3), 1);
    }
  }
  const History history = world.Run();
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->kind, Verdict::Kind::kSlowStep);
  EXPECT_EQ(verdict->slow_steps, 6u);
  ASSERT_EQ(verdict->slow.size(), 6u);
  for (const Verdict::StepTime& step : verdict->slow) {
    EXPECT_EQ(step.number % 10, 9u);
    EXPECT_EQ(step.rank, 1u);
  }
  EXPECT_NEAR(static_cast<double>(verdict->slow_lost_ns), 6.0 * 200 * kMs, 1.0 * kMs);
  const absl::StatusOr<Verdict> asked = FindVerdict(history, 12);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked->slow.size(), 6u) << "a step alone is told with the slow ones too";
}

TEST(VerdictTest, ManyStepsThatAreSlowByLittleAreTold) {
  World world(2);
  for (uint64_t step = 0; step < 60; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 10 * kMs);
      if (rank == 1 && step == 30) world.Compute(rank, 200 * kMs, Activity::kSleeps);
      if (rank == 0 && step % 4 == 1) world.Compute(rank, 40 * kMs, Activity::kReads);
      world.AllReduce(rank, World::All(2), 1);
    }
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run());
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->slow_steps, 16u);
}

// One sample has no noise to be compared with.
TEST(VerdictTest, AnOrdinaryStepIsJudgedByTheNoiseOfAll) {
  Dice dice(11);
  World world(3);
  for (uint64_t step = 0; step < 40; ++step) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      world.Compute(rank, dice.From(5, 15) * kMs);
      world.AllReduce(rank, World::All(3), 1);
    }
  }
  const History history = world.Run();
  size_t named = 0, asked = 0;
  for (uint64_t number = 1; number <= 38; ++number) {
    const absl::StatusOr<Verdict> verdict = FindVerdict(history, number);
    ASSERT_TRUE(verdict.ok());
    if (verdict->kind == Verdict::Kind::kEveryStep) ++named;
    ++asked;
  }
  EXPECT_EQ(named, 0u) << "of " << asked;
}

TEST(VerdictTest, NamesTwoSlowRanksOfANodeTogether) {
  World world(6, 2);
  for (int step = 0; step < 20; ++step) {
    for (uint32_t rank = 0; rank < 6; ++rank) {
      world.Compute(rank, 10 * kMs);
      if (rank >= 4) world.Compute(rank, 30 * kMs + rank * 1000, Activity::kThrottled);
      world.AllReduce(rank, World::All(6), 1);
    }
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run());
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kEveryStep);
  EXPECT_THAT(verdict->culprit->ranks, UnorderedElementsAre(4u, 5u));
  EXPECT_THAT(verdict->culprit->nodes, ElementsAre("node2"));
  EXPECT_THAT(verdict->culprit->waiting, ElementsAre(0u, 1u, 2u, 3u));
}

TEST(VerdictTest, FollowsCallsThatRunBesideOthers) {
  for (int seed = 0; seed < 50; ++seed) {
    Dice dice(4000 + static_cast<uint64_t>(seed));
    const auto ranks = static_cast<uint32_t>(dice.From(2, 6));
    const Slow slow{.rank = static_cast<uint32_t>(dice.From(0, ranks - 1)),
                    .step = 7,
                    .ns = 90 * kMs,
                    .activity = Activity::kReads};
    World world(ranks);
    for (uint64_t step = 0; step < 20; ++step) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        world.Compute(rank, dice.About(20 * kMs));
        if (rank == slow.rank && step == *slow.step) world.Compute(rank, slow.ns, slow.activity);
        for (int bucket = 0; bucket < 4; ++bucket) {
          world.Compute(rank, dice.About(2 * kMs));
          world.StartAllReduce(rank, World::All(ranks), 5, 3 * kMs);
        }
        world.Wait(rank);
        world.AllReduce(rank, World::All(ranks), 6);
      }
    }
    ExpectBlamed(FindVerdict(world.Run()), Verdict::Kind::kSlowStep, slow, seed);
    if (HasFailure()) return;
  }
}

// A call in which all are, of which one was stopped.
TEST(VerdictTest, NamesTheRankThatWasStoppedInACall) {
  World world(3);
  for (int step = 0; step < 12; ++step) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      world.Compute(rank, 10 * kMs);
      world.AllReduce(rank, World::All(3), 1, step == 6 ? 500 * kMs : 1 * kMs);
    }
  }
  History history = world.Run();
  auto stopped = std::make_shared<v1::StateShape>();
  stopped->set_activity(static_cast<uint32_t>(Activity::kStopped));
  const uint64_t begin_ns = World::kBegunNs + (6 * 11 + 10) * kMs;
  history.states.push_back(
      {.rank = 1, .node = 0, .shape = stopped, .begin_ns = begin_ns, .end_ns = begin_ns + 490 * kMs});
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kSlowStep);
  EXPECT_TRUE(verdict->culprit->in_call);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(1u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kStopped);
}

TEST(VerdictTest, BlamesTheNetworkForASlowCallBetweenNodes) {
  World world(4, 2);
  for (int step = 0; step < 12; ++step) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      world.Compute(rank, 10 * kMs);
      world.AllReduce(rank, World::All(4), 1, step == 6 ? 80 * kMs : 1 * kMs);
    }
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run());
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kSlowStep);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre());
  EXPECT_THAT(verdict->culprit->nodes, ElementsAre("node0", "node1"));
  EXPECT_EQ(verdict->culprit->site, "train.cc:1");
}

TEST(VerdictTest, JudgesTheWholeTimeWhereNothingRepeats) {
  World world(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    world.Compute(rank, 10 * kMs);
    if (rank == 1) world.Compute(rank, 300 * kMs, Activity::kWrites);
    world.AllReduce(rank, World::All(3), 1);
    world.Compute(rank, 10 * kMs);
    world.AllReduce(rank, World::All(3), 2);
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(world.Run());
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->steps, 0u);
  ASSERT_EQ(verdict->kind, Verdict::Kind::kAllOfIt);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(1u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kWrites);
}

TEST(VerdictTest, StepsMayBeMarked) {
  World world(2);
  for (int step = 0; step < 10; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 20 * kMs);
      if (rank == 1 && step == 4) world.Compute(rank, 100 * kMs, Activity::kReads);
      world.AllReduce(rank, World::All(2), 1);
    }
  }
  History history = world.Run();
  std::vector<uint64_t> begins_ns[2];
  for (const TracedCall& call : history.calls) begins_ns[call.rank].push_back(call.end_ns);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    history.marks.push_back({rank, 100, World::kBegunNs});
    for (size_t i = 0; i < 10; ++i) history.marks.push_back({rank, 101 + i, begins_ns[rank][i]});
  }
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict->source, Steps::Source::kMarks);
  ASSERT_EQ(verdict->kind, Verdict::Kind::kSlowStep);
  EXPECT_EQ(verdict->step->number, 104u);
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(1u));
}

// Ranks that go back after a failure mark some steps again. The calls before the first mark are not known.
TEST(VerdictTest, AStepThatAFailureHasEndedIsNone) {
  World world(2);
  std::vector<uint64_t> numbers = {5, 6, 7, 8, 6, 7, 8, 9, 10, 11};  // a failure in the fourth
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, i == 3 ? 500 * kMs : 20 * kMs);
      world.AllReduce(rank, World::All(2), 1);
    }
  }
  History history = world.Run();
  size_t made[2] = {};
  std::vector<StepMark> marks;
  for (const TracedCall& call : history.calls) {
    marks.push_back({call.rank, numbers[made[call.rank]++], call.start_ns});
  }
  history.marks = {marks.rbegin(), marks.rend()};  // in any order
  Timelines timelines = PlaceCalls(history, 0);
  const Steps steps = FindSteps(history, &timelines);
  EXPECT_EQ(steps.source, Steps::Source::kMarks);
  std::vector<uint64_t> found;
  for (const Step& step : steps.all) {
    found.push_back(step.number);
    EXPECT_LT(step.span.length_ns(), 400 * kMs) << step.number;
  }
  EXPECT_THAT(found, ElementsAre(6u, 7u, 8u, 9u, 10u));
}

TEST(VerdictTest, WithoutSamplesARankIsNamedAndNoReason) {
  Dice dice(5);
  uint64_t usual_ns = 0;
  const Slow slow{.rank = 1, .step = 5, .ns = 100 * kMs};
  History history = Replicas(&dice, 4, 12, slow, &usual_ns);
  history.states.clear();
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_TRUE(verdict->culprit.has_value());
  EXPECT_THAT(verdict->culprit->ranks, ElementsAre(1u));
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kUnknown);
}

TEST(VerdictTest, ASlowStepWhoseReasonIsKnownIsToldBeforeOthers) {
  World world(2);
  for (int step = 0; step < 20; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 10 * kMs);
      if (rank == 1 && step == 4) world.Compute(rank, 110 * kMs, Activity::kReads);
      if (rank == 1 && step == 12) world.Compute(rank, 100 * kMs, Activity::kReads);
      world.AllReduce(rank, World::All(2), 1);
    }
  }
  History history = world.Run();
  std::erase_if(history.states, [](const RankState& state) { return state.begin_ns < World::kBegunNs + 200 * kMs; });
  const absl::StatusOr<Verdict> verdict = FindVerdict(history);
  ASSERT_TRUE(verdict.ok());
  ASSERT_EQ(verdict->kind, Verdict::Kind::kSlowStep);
  EXPECT_EQ(verdict->step->number, 12u);
  EXPECT_EQ(verdict->culprit->reason.activity, Activity::kReads);
  EXPECT_EQ(verdict->slow.front().number, 4u);
}

TEST(VerdictTest, RefusesWhatItCannotKnow) {
  EXPECT_TRUE(absl::IsNotFound(FindVerdict({}).status()));
  Dice dice(6);
  uint64_t usual_ns = 0;
  const History history = Replicas(&dice, 2, 12, {}, &usual_ns);
  const absl::Status none = FindVerdict(history, 4711).status();
  EXPECT_TRUE(absl::IsOutOfRange(none));
  EXPECT_THAT(string(none.message()), HasSubstr("there is no step 4711; give one from 1 to 11"));
}

// Parts of histories, in any order, with calls that others lack: anything but a crash.
TEST(VerdictTest, TakesWhateverATraceMayHold) {
  for (int seed = 0; seed < 300; ++seed) {
    Dice dice(6000 + static_cast<uint64_t>(seed));
    uint64_t usual_ns = 0;
    History history = Grid(&dice, 3, 2, 8, {}, &usual_ns);
    std::erase_if(history.calls, [&dice](const TracedCall&) { return dice.From(0, 3) == 0; });
    for (TracedCall& call : history.calls) {
      if (dice.From(0, 9) == 0) call.end_ns = call.start_ns - std::min<uint64_t>(call.start_ns, dice.From(0, kMs));
      if (dice.From(0, 9) == 0) call.start_ns = dice.From(0, UINT64_MAX / 4);
      if (dice.From(0, 9) == 0) call.state = runtime::CallState::kStarted;
      if (dice.From(0, 9) == 0) call.rank = static_cast<uint32_t>(dice.From(0, 9));
      if (dice.From(0, 9) == 0) call.sequence = dice.From(0, 5);
    }
    for (RankState& state : history.states) {
      if (dice.From(0, 9) == 0) state.end_ns = dice.From(0, state.begin_ns);
    }
    std::shuffle(history.calls.begin(), history.calls.end(), std::mt19937_64(dice.From(0, 1'000'000)));
    if (history.calls.empty()) continue;
    const absl::StatusOr<Verdict> verdict = FindVerdict(history);
    ASSERT_TRUE(verdict.ok()) << seed;
    if (verdict->steps > 0) {
      EXPECT_TRUE(FindVerdict(history, verdict->first_step).ok());
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
