// Which parameters share a gradient bucket: pure arithmetic, no tensors.
//
// Source: Li et al., "PyTorch Distributed" (VLDB 2020) and torch's compute_bucket_assignment_by_size: parameters are
// taken in the order in which their gradients are expected, a bucket is closed when it reaches its limit, and the first
// bucket has a smaller one, so that communication starts early.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

// What the assignment needs to know of one parameter.
struct ParameterSize {
  int64_t bytes = 0;
  int dtype = 0;   // parameters of different types never share a bucket
  int device = 0;  // LocalDevice::index; nor do parameters of different devices
};

struct BucketLimits {
  int64_t first_bytes = int64_t{1} << 20;
  int64_t cap_bytes = int64_t{25} << 20;
};

// Cuts `order` (indices into `parameters`, in expected order of readiness, each once) into buckets, in the order in
// which they are expected to fill. A parameter larger than its limit gets a bucket that ends with it. The small limit
// applies to the first bucket of each (dtype, device).
std::vector<std::vector<int>> AssignBuckets(const std::vector<ParameterSize>& parameters, const std::vector<int>& order,
                                            const BucketLimits& limits);

}  // namespace cohort::trainer
