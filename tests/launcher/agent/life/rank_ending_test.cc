#include "cohort/launcher/agent/life/rank_ending.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cohort::launcher {
namespace {

TEST(RankEnding, HasNoOtherTransitionsThanThese) {
  using enum RankEnding;
  const std::set<std::pair<RankEnding, RankEnding>> legal = {
      {kNone, kDecided}, {kNone, kKilled}, {kDecided, kAsked}, {kDecided, kKilled}};
  const RankEnding all[] = {kNone, kDecided, kAsked, kKilled};
  for (const RankEnding from : all) {
    for (const RankEnding to : all) EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}));
  }
}

}  // namespace
}  // namespace cohort::launcher
