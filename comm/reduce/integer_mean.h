// The mean of integers: their exact sum divided by their number, truncated towards zero. The sum of two int8 values may
// need nine bits, so sums are kept in totals: wider integers that hold the sum of 2^24 elements, more than a world has
// ranks. The mean fits the elements' type again.
//
// `dtype` is an integer type everywhere, and counts are in elements. Memory may have any alignment.
#pragma once

#include <cstddef>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/reduce/reduce_kernel.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// Bytes of the total of elements of `dtype`.
constexpr size_t TotalBytes(DataType dtype) {
  constexpr size_t kBytes[] = {0, 4, 8, 0, 8, 0, 0, 0, 16};
  return kBytes[SizeOf(dtype)];
}

// totals[i] = elements[i]
void ToTotals(DataType dtype, void* totals, const void* elements, size_t count);
// elements[i] = totals[i] / divisor. divisor > 0.
void ToMeans(DataType dtype, void* elements, const void* totals, size_t count, int divisor);

// The sum of totals, whose number is the count.
ReduceKernel FindTotalKernel(DataType dtype);
FoldKernel FindTotalFoldKernel(DataType dtype);

// The fold of elements of all ranks to their mean (FindAverageFoldKernel). It does not write past the caches.
FoldKernel FindIntegerMeanFoldKernel(DataType dtype);

}  // namespace cohort::comm
