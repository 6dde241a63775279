#include "tools/measure/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort::measure {
namespace {

TEST(Statistics, ASummaryHasMinimumMedianAndP99) {
  std::vector<double> samples;
  for (int i = 200; i > 0; --i) samples.push_back(i);
  const Summary summary = Summarize(samples);
  EXPECT_DOUBLE_EQ(summary.minimum, 1);
  EXPECT_DOUBLE_EQ(summary.median, 100.5);
  EXPECT_DOUBLE_EQ(summary.p99, 198);
  std::vector<double> one = {3};
  EXPECT_DOUBLE_EQ(Summarize(one).p99, 3);
  EXPECT_DOUBLE_EQ(Summarize({}).median, 0);
}

TEST(Statistics, GeometricMeanOfAValueAndItsInverseIsOne) {
  const std::vector<double> values = {0.5, 2};
  EXPECT_DOUBLE_EQ(GeometricMean(values), 1);
  EXPECT_DOUBLE_EQ(GeometricMean({}), 0);
}

}  // namespace
}  // namespace cohort::measure
