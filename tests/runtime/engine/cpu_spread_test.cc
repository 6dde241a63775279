#include "cohort/runtime/engine/cpu_spread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <vector>

namespace cohort::runtime {
namespace {

TEST(CpuSpreadTest, TheLastRankOfACrowdedCpuMovesToTheEmptiest) {
  const std::vector<int> both = {0, 1};
  const std::vector<int> three_and_one = {0, 0, 1, 0};
  EXPECT_EQ(BetterCpu(three_and_one, 3, both), 1);
  EXPECT_EQ(BetterCpu(three_and_one, 0, both), -1);  // a later one is there, too
  EXPECT_EQ(BetterCpu(three_and_one, 2, both), -1);
  EXPECT_EQ(BetterCpu(three_and_one, 3, std::vector<int>{0}), -1);  // may not
}

TEST(CpuSpreadTest, ARankStaysWhereNothingIsGained) {
  const std::vector<int> cpus = {0, 1, 2};
  EXPECT_EQ(BetterCpu(std::vector<int>{0, 1, 0, 1}, 3, cpus), 2);
  EXPECT_EQ(BetterCpu(std::vector<int>{0, 1, 0, 1}, 3, std::vector<int>{0, 1}), -1);
  EXPECT_EQ(BetterCpu(std::vector<int>{0, 1, 0}, 2, std::vector<int>{0, 1}), -1);  // three on two
  EXPECT_EQ(BetterCpu(std::vector<int>{-1, 0, -1}, 1, cpus), -1);                  // of others nothing is known
  EXPECT_EQ(BetterCpu(std::vector<int>{-1, 0, -1}, 0, cpus), -1);
}

cpu_set_t AffinityNow() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  return mask;
}

void Pin(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

// Two ranks that were last seen on one CPU, and a third, the caller.
class Crowd {
 public:
  explicit Crowd(bool shared) {
    const cpu_set_t before = AffinityNow();
    while (!CPU_ISSET(cpu_, &before)) ++cpu_;
    auto maker = Segment::Create({.local_ranks = 3});
    EXPECT_TRUE(maker.ok());
    for (int rank = 0; rank < 3; ++rank) {
      auto segment = Segment::Attach(dup((*maker)->fd()), rank);
      EXPECT_TRUE(segment.ok());
      segments_.push_back(*std::move(segment));
      ranks_.push_back(std::make_unique<CpuSpread>(segments_.back().get(), shared));
    }
    Pin(cpu_);
    for (int rank = 0; rank < 2; ++rank) ranks_[static_cast<size_t>(rank)]->Look(now_);
    EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  }

  // In how many of `rounds` the third rank is elsewhere after it has looked twice, each time put among the others
  // first. The kernel itself, which may move a thread at any time, hardly ever does in those few microseconds.
  int Moves(int rounds) {
    const cpu_set_t before = AffinityNow();
    int moves = 0;
    for (int round = 0; round < rounds; ++round) {
      Pin(cpu_);
      EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
      for (int look = 0; look < 2; ++look) ranks_[2]->Look(now_ += std::chrono::seconds(1));
      moves += static_cast<int>(sched_getcpu() != cpu_);
      const cpu_set_t after = AffinityNow();
      EXPECT_TRUE(CPU_EQUAL(&before, &after)) << "it may not go everywhere any more";
    }
    return moves;
  }

 private:
  int cpu_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<CpuSpread>> ranks_;
  std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
};

constexpr int kRounds = 40;

TEST(CpuSpreadTest, ACrowdOnOneCpuDissolves) {
  const cpu_set_t before = AffinityNow();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "needs two CPUs";
  EXPECT_GT(Crowd(/*shared=*/true).Moves(kRounds), kRounds / 2);
}

// Also shows that the test above can fail.
TEST(CpuSpreadTest, RanksWithCpusOfTheirOwnStay) {
  const cpu_set_t before = AffinityNow();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "needs two CPUs";
  EXPECT_LT(Crowd(/*shared=*/false).Moves(kRounds), kRounds / 2);
}

}  // namespace
}  // namespace cohort::runtime
