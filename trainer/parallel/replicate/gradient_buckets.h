// AssignBuckets decides which parameters share a gradient bucket. It is arithmetic alone, without tensors.
//
// Parameters are taken in the order in which their gradients are expected. A bucket is closed when it reaches its
// limit. The first bucket has a smaller limit, so that communication starts early.
//
// Source: Li et al., "PyTorch Distributed" (VLDB 2020) and torch's compute_bucket_assignment_by_size.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

// The properties of one parameter that the assignment depends on.
struct ParameterSize {
  int64_t bytes = 0;
  int dtype = 0;       // parameters of different types never share a bucket
  int device = 0;      // LocalDevice::index; parameters of different devices never share one either
  bool alone = false;  // shares a bucket with no other one
};

struct BucketLimits {
  int64_t first_bytes = int64_t{1} << 20;
  int64_t cap_bytes = int64_t{25} << 20;
};

// Cuts `order` into buckets, in the order in which they are expected to fill. `order` has indices into `parameters` in
// expected order of readiness, each once. A parameter larger than the limit ends its bucket. The small limit applies to
// the first bucket of each (dtype, device).
std::vector<std::vector<int>> AssignBuckets(const std::vector<ParameterSize>& parameters, const std::vector<int>& order,
                                            const BucketLimits& limits);

}  // namespace cohort::trainer
