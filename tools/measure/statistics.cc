#include "tools/measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cohort::measure {

double Median(std::span<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Summary Summarize(std::span<double> samples) {
  if (samples.empty()) return {};
  const double median = Median(samples);
  const size_t rank = (samples.size() * 99 + 99) / 100;  // rounded up
  return {samples.front(), median, samples[rank - 1]};
}

double GeometricMean(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

}  // namespace cohort::measure
