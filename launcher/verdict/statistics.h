// Middle values. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cohort::launcher {

// The median, of two middle ones the lower; 0 of none.
inline uint64_t Median(std::vector<uint64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The usual distance from the median, as a normal distribution's standard deviation.
inline uint64_t Spread(std::vector<uint64_t> values) {
  const uint64_t middle = Median(values);
  for (uint64_t& value : values) value = value > middle ? value - middle : middle - value;
  return Median(std::move(values)) * 1483 / 1000;
}

}  // namespace cohort::launcher
