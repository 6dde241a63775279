#include "cohort/trainer/parallel/pipeline/shared_weights.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;
using Holder = WeightOfStages::Holder;

TEST(JoinPairs, PairsWithACommonParameterAreOneWeight) {
  const auto star = JoinPairs({{0, "a", 3, "d"}, {0, "a", 1, "b"}, {1, "x", 2, "y"}});
  ASSERT_EQ(star.size(), 2u);
  EXPECT_THAT(star[0].holders, ElementsAre(Holder{0, "a"}, Holder{3, "d"}, Holder{1, "b"}));
  EXPECT_THAT(star[1].holders, ElementsAre(Holder{1, "x"}, Holder{2, "y"}));
}

// A pair may connect what was apart. The name is that of the parameter that is no copy of another.
TEST(JoinPairs, AChainInAnyOrderIsOneWeight) {
  const auto chain = JoinPairs({{2, "c", 3, "d"}, {0, "a", 1, "b"}, {1, "b", 2, "c"}});
  ASSERT_EQ(chain.size(), 1u);
  EXPECT_THAT(chain[0].holders, ElementsAre(Holder{0, "a"}, Holder{2, "c"}, Holder{3, "d"}, Holder{1, "b"}));
  EXPECT_EQ(chain[0].name(), "a");
}

TEST(JoinPairs, ACircleHasTheFirstName) {
  const auto circle = JoinPairs({{0, "a", 1, "b"}, {1, "b", 0, "a"}});
  ASSERT_EQ(circle.size(), 1u);
  EXPECT_THAT(circle[0].holders, ElementsAre(Holder{0, "a"}, Holder{1, "b"}));
}

TEST(JoinPairs, APairOfOneParameterIsRefused) {
  EXPECT_THROW(CheckSharedWeights(JoinPairs({{0, "a", 0, "a"}}), {}, 2), c10::Error);
  EXPECT_THROW(CheckSharedWeights(JoinPairs({{0, "a", 2, "b"}}), {}, 2), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
