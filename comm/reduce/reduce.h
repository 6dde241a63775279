// The arithmetic of reductions: dst[i] = a[i] op b[i] for every type and op, vectorised for the CPU it runs on.
//
// The values of results:
//   integers      wrap around (modulo 2^bits), signed ones too; means never do (comm/reduce/integer_mean.h)
//   float16, bfloat16, float8   each operation is computed in float32 and rounded to nearest, ties to even
//   float8_e4m3   has no infinity: infinity and what rounds beyond 448 become NaN. PyTorch 2.15 saturates to 448.
//   float8_e5m2   what rounds beyond 57344 becomes infinity. NCCL's kernels saturate both types.
//   min, max      of floating-point numbers: NaN if either is NaN (as torch.minimum and IEEE 754-2019 minimum), and -0
//                 is less than +0, so that the result does not depend on the order of the operands
// All CPUs give the same bits, except for the payload of NaNs.
#pragma once

#include <cstddef>

#include "cohort/comm/reduce/reduce_kernel.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

// The kernel for a type and op; kAvg and kPreMulSum give the sum, to be divided with DivideBy when it is complete, or
// of prepared operands. The sum of integers may have wrapped around by then: see comm/reduce/integer_mean.h. Null for
// values that are no DataType or ReduceOp, for bit operations on floating-point numbers, and for kUser. The kernel
// takes counts in elements and memory of any alignment; dst may equal a or b, other overlaps are not allowed. Cheap,
// but meant to be looked up once per operation.
ReduceKernel FindReduceKernel(DataType dtype, ReduceOp op);
// dst[i] = (a[i] + b[i]) / 2, divided in float32 before the one rounding: for averages of two ranks. Like
// FindReduceKernel; null for types that AccumulatorOf leaves as they are.
ReduceKernel FindMeanOfTwoKernel(DataType dtype);

// data[i] /= divisor, in place, for `count` elements: what turns a sum into an average. Integers truncate towards zero;
// smaller floating-point types are divided in float32. divisor > 0.
void DivideBy(DataType dtype, void* data, size_t count, int divisor);

// The type that elements are added and multiplied in: float32 for smaller floating-point types, else the type itself.
DataType AccumulatorOf(DataType dtype);
// dst[i] = src[i] * factor, src of type `dtype`, dst of its accumulator; integers wrap around. dst may be src where the
// types are equal. FactorFits(dtype, factor).
void Prepare(DataType dtype, void* dst, const void* src, size_t count, double factor);
// dst[i] = src[i] / divisor, src of the accumulator of `dtype`, dst of `dtype`: the one rounding of a reduction.
void Finish(DataType dtype, void* dst, const void* src, size_t count, int divisor);

// outs[j][i] = ins[0][i] op ins[1][i] op ... op ins[n_ins - 1][i] for every j, combined from the left. float16 and
// bfloat16 are accumulated in float32 and rounded once, at the end; a fold of one operand copies it. Counts in
// elements; memory of any alignment; an output may equal any operand, other overlaps are not allowed. n_ins >= 1.
// `stream`: the outputs are written past the caches (they should be larger than those, and not be read soon), and are
// visible to other CPUs when the kernel returns.
using FoldKernel = void (*)(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t count,
                            bool stream);
// For values that FindReduceKernel knows; kAvg gives the sum, as there. Null otherwise.
FoldKernel FindFoldKernel(DataType dtype, ReduceOp op);
// The fold of a sum that also divides by n_ins, before the one rounding: where one fold has the operands of all ranks.
FoldKernel FindAverageFoldKernel(DataType dtype);

}  // namespace cohort::comm
