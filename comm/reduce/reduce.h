// The arithmetic of reductions: dst[i] = a[i] op b[i] for every type and op, vectorised for the CPU it runs on.
//
// What the values are:
//   integers      wrap around (modulo 2^bits), signed ones too
//   float16, bfloat16   each operation is computed in float32 and rounded to nearest, ties to even
//   min, max      of floating-point numbers: NaN if either is NaN (as torch.minimum and IEEE 754-2019 minimum), and -0
//                 is less than +0, so that the result does not depend on the order of the operands
// All CPUs give the same bits, except for the payload of NaNs.
#pragma once

#include <cstddef>

#include "comm/transport/transport.h"
#include "comm/types.h"

namespace cohort::comm {

// The kernel for a type and op; kAvg gives the sum, to be divided with DivideBy when it is complete. Null for values
// that are no DataType or ReduceOp. The kernel takes counts in elements and memory of any alignment; dst may equal a or
// b, other overlaps are not allowed. Cheap, but meant to be looked up once per operation.
ReduceKernel FindReduceKernel(DataType dtype, ReduceOp op);

// data[i] /= divisor, in place, for `count` elements: what turns a sum into an average. Integers truncate towards zero;
// float16 and bfloat16 are divided in float32. divisor > 0.
void DivideBy(DataType dtype, void* data, size_t count, int divisor);

}  // namespace cohort::comm
