#include "cohort/trainer/parallel/zero/zero_partition.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using testing::ElementsAre;

TEST(ZeroPartition, SortsBySizeAndGivesTheLargestToTheLeastLoaded) {
  EXPECT_THAT(PartitionParameters({{1}, {10}, {4}, {6}, {5}}, 2, ZeroPartition::kSortedBySize),
              ElementsAre(1, 0, 0, 1, 1));
}

TEST(ZeroPartition, InOrderKeepsTheOrderAndCountsFrozenParametersAsOne) {
  EXPECT_THAT(PartitionParameters({{1}, {10}, {4}, {6}, {5}}, 2, ZeroPartition::kInOrder), ElementsAre(0, 1, 0, 0, 1));
  EXPECT_THAT(PartitionParameters({{100, false}, {2}, {3}, {1}}, 2, ZeroPartition::kInOrder), ElementsAre(0, 1, 0, 1));
}

// Greedy by falling size never exceeds 4/3 of the best possible, which is at least the mean and the largest one.
TEST(ZeroPartition, PartitionsAreBalanced) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    std::vector<PartitionedParameter> parameters(1 + random() % 60);
    for (auto& parameter : parameters) parameter.elements = 1 + static_cast<int64_t>(random() % 1000);
    const int ranks = 1 + static_cast<int>(random() % 8);
    const auto owners = PartitionParameters(parameters, ranks, ZeroPartition::kSortedBySize);
    std::vector<int64_t> load(ranks, 0);
    int64_t total = 0, largest = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      load.at(owners[i]) += parameters[i].elements;
      total += parameters[i].elements;
      largest = std::max(largest, parameters[i].elements);
    }
    const int64_t most = *std::max_element(load.begin(), load.end());
    EXPECT_LE(most, total / ranks + largest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::trainer
