// Decides which rank owns each parameter's optimizer state (ZeRO stage 1). It is arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

enum class ZeroPartition {
  kSortedBySize,  // torch's ZeroRedundancyOptimizer: largest first, each to the rank with the least so far
  kInOrder  // FairScale's OSS: in the order of registration, to the rank with the least so far; frozen ones count 1
};

struct PartitionedParameter {
  int64_t elements = 0;
  bool requires_grad = true;
};

// Returns the owner of each parameter among `ranks` ranks. Ties go to the lowest rank.
std::vector<int> PartitionParameters(const std::vector<PartitionedParameter>& parameters, int ranks,
                                     ZeroPartition partition);

}  // namespace cohort::trainer
