#include "runtime/cpu_spread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "runtime/base/deadline.h"

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

// Three ranks on one CPU: the third finds another, and may go on anywhere afterwards.
TEST(CpuSpreadTest, ACrowdDissolves) {
  const cpu_set_t before = AffinityNow();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "needs two CPUs";
  int crowded = 0;
  while (!CPU_ISSET(crowded, &before)) ++crowded;
  auto maker = Segment::Create({.local_ranks = 3});
  ASSERT_TRUE(maker.ok());
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<std::unique_ptr<CpuSpread>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    auto segment = Segment::Attach(dup((*maker)->fd()), rank);
    ASSERT_TRUE(segment.ok());
    segments.push_back(*std::move(segment));
    ranks.push_back(std::make_unique<CpuSpread>(segments.back().get(), /*shared=*/true));
  }
  auto now = std::chrono::steady_clock::now();
  Pin(crowded);
  ranks[0]->Look(now);
  ranks[1]->Look(now);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  const Deadline deadline = Deadline::After(std::chrono::seconds(10));
  do {
    now += std::chrono::seconds(1);
    ranks[2]->Look(now);
  } while (sched_getcpu() == crowded && !deadline.passed());
  EXPECT_FALSE(deadline.passed());
  const cpu_set_t after = AffinityNow();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  ranks.clear();
}

}  // namespace
}  // namespace cohort::runtime
