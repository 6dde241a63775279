// The work of one thread of the kernels that search memory for what is no finite number. nvcc compiles it for the
// device, and tests for the host, which run the threads one after the other.
#pragma once

#include "cohort/comm/cuda/reduce_arithmetic.h"

namespace cohort::comm::cuda {

// The result of a search. The threads add to it, which the host has set to its defaults.
struct Found {
  unsigned long long first = ~0ull;  // twice the index of the first element that is not finite, plus 1 for infinity
  unsigned long long nans = 0;
  unsigned long long infinities = 0;
};

struct SearchArguments {
  const void* in = nullptr;
  uint64_t count = 0;      // elements, at any address
  Found* found = nullptr;  // in device memory
};

COHORT_ON_DEVICE void AddTo(unsigned long long* sum, unsigned long long value) {
#ifdef __CUDA_ARCH__
  atomicAdd(sum, value);
#else
  *sum += value;
#endif
}

COHORT_ON_DEVICE void LowerTo(unsigned long long* least, unsigned long long value) {
#ifdef __CUDA_ARCH__
  atomicMin(least, value);
#else
  if (value < *least) *least = value;
#endif
}

template <class Format>
COHORT_ON_DEVICE void Search(const SearchArguments& arguments, uint64_t thread, uint64_t threads) {
  using T = typename Format::Element;
  const bool aligned = reinterpret_cast<uintptr_t>(arguments.in) % sizeof(T) == 0;
  Found own;
  COHORT_NOT_UNROLLED
  for (uint64_t i = thread; i < arguments.count; i += threads) {
    T element;
    if (aligned) {
      element = static_cast<const T*>(arguments.in)[i];
    } else {
      memcpy(&element, static_cast<const char*>(arguments.in) + i * sizeof(T), sizeof element);
    }
    const auto number = Format::Decode(element);
    if (!IsNan(number - number)) continue;
    const bool nan = IsNan(number);
    ++(nan ? own.nans : own.infinities);
    const unsigned long long place = 2 * i + (nan ? 0 : 1);
    if (place < own.first) own.first = place;
  }
  if (own.nans + own.infinities == 0) return;
  LowerTo(&arguments.found->first, own.first);
  AddTo(&arguments.found->nans, own.nans);
  AddTo(&arguments.found->infinities, own.infinities);
}

}  // namespace cohort::comm::cuda
