#include "tools/measure/flag_ping_pong.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

namespace cohort::measure {
namespace {

TEST(FlagPingPong, BothSidesMeasureAsOftenAsTheyLike) {
  const auto memory = std::make_unique<FlagMemory>();
  double other_ns[2] = {};
  std::thread other([&] {
    FlagPingPong side(memory.get(), 1);
    for (double& ns : other_ns) ns = side.Measure();
  });
  FlagPingPong side(memory.get(), 0);
  for (int i = 0; i < 2; ++i) {
    const double ns = side.Measure();
    EXPECT_GT(ns, 0);
  }
  other.join();
  EXPECT_GT(other_ns[0], 0);
  EXPECT_GT(other_ns[1], 0);
}

TEST(FlagPingPong, ASlowSideMakesThePingPongShort) {
  constexpr uint64_t kNumber = ~(uint64_t{1} << 63);
  const auto memory = std::make_unique<FlagMemory>();
  std::atomic<bool> over = false;
  uint64_t rounds = 0;
  std::thread other([&] {
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const uint64_t asked = memory->lines[0].round.load() & kNumber;
      rounds += asked > rounds ? 1 : 0;
      memory->lines[1].round.store(rounds);
    }
  });
  FlagPingPong side(memory.get(), 0);
  EXPECT_GT(side.Measure(), 0);
  over = true;
  other.join();
  EXPECT_LE(rounds, 8);  // of 601
}

TEST(FlagPingPong, GivesUpOnASideThatDoesNotCome) {
  const auto memory = std::make_unique<FlagMemory>();
  FlagPingPong side(memory.get(), 0);
  int asked = 0;
  side.set_give_up([&asked] { return ++asked == 3; });
  EXPECT_EQ(side.Measure(), 0);
  EXPECT_EQ(asked, 3);
}

TEST(FlagPingPong, NamesPlacements) {
  EXPECT_EQ(PlacementOf(15, 47), "near");
  EXPECT_EQ(PlacementOf(160, 155), "far");
  EXPECT_EQ(PlacementOf(45, 158), "moved");
  EXPECT_EQ(PlacementOf(158, 45), "moved");
}

}  // namespace
}  // namespace cohort::measure
