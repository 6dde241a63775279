#include "cohort/comm/plan/placement.h"

#include <algorithm>
#include <map>

namespace cohort::comm {

Placement::Placement(const std::vector<int>& node_names) {
  std::map<int, int> numbers;
  std::vector<int> counts;
  for (const int name : node_names) {
    const auto [entry, added] = numbers.try_emplace(name, static_cast<int>(counts.size()));
    if (added) counts.push_back(0);
    int& count = counts[static_cast<size_t>(entry->second)];
    places_.push_back({entry->second, count++});
  }
  first_.push_back(0);
  for (const int count : counts) first_.push_back(first_.back() + count);
  ranks_.resize(places_.size());
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    const int at = first_[static_cast<size_t>(places_[rank].node)] + places_[rank].local;
    ranks_[static_cast<size_t>(at)] = static_cast<int>(rank);
    contiguous_ = contiguous_ && at == static_cast<int>(rank);
  }
  if (counts.empty()) return;
  const auto [smallest, largest] = std::minmax_element(counts.begin(), counts.end());
  shape_ = {static_cast<int>(counts.size()), *smallest, *largest};
}

std::span<const int> Placement::ranks_on(int node) const {
  const auto begin = static_cast<size_t>(first_[static_cast<size_t>(node)]);
  const auto end = static_cast<size_t>(first_[static_cast<size_t>(node) + 1]);
  return std::span(ranks_).subspan(begin, end - begin);
}

}  // namespace cohort::comm
