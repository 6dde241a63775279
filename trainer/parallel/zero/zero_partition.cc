#include "cohort/trainer/parallel/zero/zero_partition.h"

#include <algorithm>
#include <numeric>

namespace cohort::trainer {

std::vector<int> PartitionParameters(const std::vector<PartitionedParameter>& parameters, int ranks,
                                     ZeroPartition partition) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const bool sorted = partition == ZeroPartition::kSortedBySize;
  if (sorted) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return parameters[a].elements > parameters[b].elements; });
  }
  std::vector<int> owners(parameters.size());
  std::vector<int64_t> load(ranks, 0);
  for (size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[i] = static_cast<int>(least - load.begin());
    *least += sorted || parameters[i].requires_grad ? parameters[i].elements : 1;
  }
  return owners;
}

}  // namespace cohort::trainer
