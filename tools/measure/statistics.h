// Statistics of many samples of one time.
#pragma once

#include <cstdint>
#include <span>

namespace cohort::measure {

// In the samples' unit; all 0 where there is none.
struct Summary {
  double minimum = 0;
  double median = 0;
  double p99 = 0;  // the smallest sample that 99 % do not exceed
};

// Sorts `samples`.
Summary Summarize(std::span<double> samples);
// The middle one, or the mean of the two in the middle. Sorts `values`; 0 where there is none.
double Median(std::span<double> values);
// The geometric mean of positive values; 0 if there is none.
double GeometricMean(std::span<const double> values);

}  // namespace cohort::measure
