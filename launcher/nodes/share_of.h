// The share of its machine that a simulated node has.
#pragma once

#include <cstddef>
#include <vector>

namespace cohort::launcher {

// Returns the part of `all` that node `node` of `nodes` has: parts of equal size but for one, in order, or, where there
// are more nodes than things, everything for each of them.
template <typename T>
std::vector<T> ShareOf(const std::vector<T>& all, int node, int nodes) {
  const auto index = static_cast<size_t>(node), count = static_cast<size_t>(nodes);
  if (all.size() < count) return all;
  const auto place = [&](size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i * all.size() / count); };
  return std::vector<T>(place(index), place(index + 1));
}

}  // namespace cohort::launcher
