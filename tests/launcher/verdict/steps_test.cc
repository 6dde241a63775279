#include "cohort/launcher/verdict/steps.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/launcher/verdict/milliseconds.h"
#include "tests/launcher/verdict/world.h"

namespace cohort::launcher {
namespace {

Steps StepsOf(World* world) {
  const History history = world->Run();
  Timelines timelines = PlaceCalls(history, 1000);
  return FindSteps(history, &timelines);
}

void ExpectSteps(const Steps& steps, size_t count, uint64_t usual_ms) {
  EXPECT_EQ(steps.source, Steps::Source::kCalls);
  ASSERT_EQ(steps.all.size(), count);
  for (const Step& step : steps.all) {
    EXPECT_NEAR(static_cast<double>(step.span.length_ns()) / kMs, static_cast<double>(usual_ms), 2) << step.number;
  }
}

TEST(StepsTest, ALoopInAStepIsNoStep) {
  World world(2);
  for (int step = 0; step < 12; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 60 * kMs);
      for (int bucket = 0; bucket < 40; ++bucket) {
        world.Compute(rank, 1 * kMs);
        world.AllReduce(rank, World::All(2), 1, 1000);
      }
      world.AllReduce(rank, World::All(2), 2, 1000);
    }
  }
  ExpectSteps(StepsOf(&world), 11, 100);
}

TEST(StepsTest, ACheckpointNowAndThenEndsNoStep) {
  World world(2);
  for (int step = 0; step < 40; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 20 * kMs);
      world.AllReduce(rank, World::All(2), 1, 1000);
      if (step % 10 == 9) world.AllReduce(rank, World::All(2), 3, 1000);
    }
  }
  ExpectSteps(StepsOf(&world), 39, 20);
}

TEST(StepsTest, AStepIsFoundBehindManyCallsThatComeLessOften) {
  World world(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (int time = 0; time < 5; ++time) {
      for (int site = 100; site < 300; ++site) world.AllReduce(rank, World::All(2), site, 1000);
    }
    for (int step = 0; step < 40; ++step) {
      world.Compute(rank, 20 * kMs);
      world.AllReduce(rank, World::All(2), 1, 1000);
    }
  }
  ExpectSteps(StepsOf(&world), 39, 20);
}

TEST(StepsTest, TheNumberOfCallsInAStepMayChange) {
  World world(2);
  for (int step = 0; step < 20; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 30 * kMs);
      for (int i = 0; i < 2 + step % 5; ++i) world.AllReduce(rank, World::All(2), 1, 1000);
      world.AllReduce(rank, World::All(2), 2, 1000);
    }
  }
  ExpectSteps(StepsOf(&world), 19, 30);
}

TEST(StepsTest, RanksWithoutACommonCallAreAlignedByTime) {
  World world(4);
  for (int step = 0; step < 20; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 30 * kMs);
      world.Send(rank, rank + 2, 1);
      world.AllReduce(rank, {0, 1}, 2, 1000);
    }
    for (uint32_t rank = 2; rank < 4; ++rank) {
      world.Receive(rank, rank - 2, 3);
      world.Compute(rank, 10 * kMs);
      world.AllReduce(rank, {2, 3}, 4, 1000);
    }
  }
  const Steps steps = StepsOf(&world);
  ASSERT_GE(steps.all.size(), 18u);
  for (size_t i = 1; i + 1 < steps.all.size(); ++i) {
    for (const Step::Part& part : steps.all[i].parts) EXPECT_LT(part.first, part.last) << i;
  }
}

TEST(StepsTest, RanksThatBeginEarlierMakeNoLongStep) {
  World world(5);
  for (uint32_t rank = 0; rank < 5; ++rank) {
    if (rank < 3) world.Compute(rank, 100 * kMs);
    for (int step = 0; step < 20; ++step) {
      world.Compute(rank, 30 * kMs);
      world.AllReduce(rank, rank < 3 ? std::vector<uint32_t>{0, 1, 2} : std::vector<uint32_t>{3, 4}, 1, 1000);
    }
  }
  const Steps steps = StepsOf(&world);
  ASSERT_GE(steps.all.size(), 15u);
  for (const Step& step : steps.all) {
    EXPECT_GE(step.span.begin_ns, World::kBegunNs) << step.number;
    EXPECT_LT(step.span.length_ns(), 70 * kMs) << step.number;
  }
}

TEST(StepsTest, MissingCallsMakeNoLongStep) {
  World world(2);
  for (int step = 0; step < 20; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      world.Compute(rank, 20 * kMs);
      world.AllReduce(rank, World::All(2), 1, 1000);
    }
  }
  History history = world.Run();
  std::erase_if(history.calls, [](const TracedCall& call) { return call.sequence == 10; });
  Timelines timelines = PlaceCalls(history, 1000);
  const Steps steps = FindSteps(history, &timelines);
  ExpectSteps(steps, 17, 20);
}

TEST(StepsTest, ThereAreNoneInFewCalls) {
  World world(2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 3; ++i) world.AllReduce(rank, World::All(2), 1);
  }
  EXPECT_EQ(StepsOf(&world).source, Steps::Source::kNone);
}

}  // namespace
}  // namespace cohort::launcher
