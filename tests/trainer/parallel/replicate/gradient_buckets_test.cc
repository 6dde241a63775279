#include "cohort/trainer/parallel/replicate/gradient_buckets.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using Buckets = std::vector<std::vector<int>>;

std::vector<int> Reversed(int count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

TEST(GradientBuckets, FirstBucketIsSmallAndOrderIsKept) {
  const std::vector<ParameterSize> parameters(6, ParameterSize{.bytes = 10});
  EXPECT_EQ(AssignBuckets(parameters, Reversed(6), {.first_bytes = 10, .cap_bytes = 20}),
            (Buckets{{5}, {4, 3}, {2, 1}, {0}}));
}

TEST(GradientBuckets, TypesAndDevicesNeverMix) {
  const std::vector<ParameterSize> parameters = {{4, 0, 0}, {4, 1, 0}, {4, 0, 1}, {4, 0, 0}};
  // Ordered by where the last member of each stands.
  EXPECT_EQ(AssignBuckets(parameters, {0, 1, 2, 3}, {}), (Buckets{{1}, {2}, {0, 3}}));
}

TEST(GradientBuckets, AnOversizedParameterEndsItsBucket) {
  const std::vector<ParameterSize> parameters = {{100, 0, 0}, {1, 0, 0}, {1, 0, 0}};
  EXPECT_EQ(AssignBuckets(parameters, {1, 0, 2}, {.first_bytes = 5, .cap_bytes = 5}), (Buckets{{1, 0}, {2}}));
}

TEST(GradientBuckets, AModelWithoutParametersHasNoBuckets) { EXPECT_TRUE(AssignBuckets({}, {}, {}).empty()); }

// Random models: every parameter is in exactly one bucket of its kind, in order; all but the last bucket of a kind have
// reached their limit, and none would have without its last member.
TEST(GradientBuckets, RandomModelsKeepTheInvariants) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<ParameterSize> parameters(random() % 40);
    for (auto& parameter : parameters) {
      parameter = {static_cast<int64_t>(random() % 50), static_cast<int>(random() % 2), static_cast<int>(random() % 2)};
    }
    std::vector<int> order = Reversed(static_cast<int>(parameters.size()));
    std::shuffle(order.begin(), order.end(), random);
    const BucketLimits limits = {.first_bytes = 1 + static_cast<int64_t>(random() % 40),
                                 .cap_bytes = 1 + static_cast<int64_t>(random() % 90)};
    const Buckets buckets = AssignBuckets(parameters, order, limits);

    std::map<std::pair<int, int>, std::vector<int>> expected, found;
    for (int i : order) expected[{parameters[i].dtype, parameters[i].device}].push_back(i);
    std::map<std::pair<int, int>, int> buckets_of_kind, seen;
    const auto kind_of = [&](const std::vector<int>& bucket) {
      return std::pair<int, int>(parameters[bucket[0]].dtype, parameters[bucket[0]].device);
    };
    for (const auto& bucket : buckets) ++buckets_of_kind[kind_of(bucket)];
    for (const auto& bucket : buckets) {
      ASSERT_FALSE(bucket.empty());
      const auto kind = kind_of(bucket);
      int64_t bytes = 0;
      for (int i : bucket) {
        EXPECT_EQ(std::make_pair(parameters[i].dtype, parameters[i].device), kind);
        found[kind].push_back(i);
        bytes += parameters[i].bytes;
      }
      const int64_t limit = seen[kind] == 0 ? limits.first_bytes : limits.cap_bytes;
      if (++seen[kind] < buckets_of_kind[kind]) {
        EXPECT_GE(bytes, limit);
      }
      EXPECT_LT(bytes - parameters[bucket.back()].bytes, limit);
    }
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace cohort::trainer
