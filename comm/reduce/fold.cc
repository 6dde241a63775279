// The fold of n operands in one pass: what makes a reduction read every operand once, write the result once, and round
// it once. Compiled once for each instruction set, as kernels.cc.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cohort/comm/reduce/instruction_set.h"
#include "cohort/comm/reduce/integer_mean.h"
#include "cohort/comm/reduce/reduce.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cohort/comm/reduce/fold.cc"
// clang-format off: this order
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "cohort/comm/reduce/formats.inc"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {

template <class Format, bool kAverage>
HWY_INLINE VectorOf<Format> Finish(VectorOf<Format> sum, VectorOf<Format> divisor) {
  if constexpr (kAverage) {
    return hn::Div(sum, divisor);
  } else {
    return sum;
  }
}

// Elements [i, i + n), less than a vector of them.
template <class Format, class Op, bool kAverage>
void FoldPart(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t i, size_t n,
              VectorOf<Format> divisor) {
  using T = ElementOf<Format>;
  auto sum = LoadFirst<Format>(static_cast<const T*>(ins[0]) + i, n);
  for (size_t k = 1; k < n_ins; ++k) sum = Op()(sum, LoadFirst<Format>(static_cast<const T*>(ins[k]) + i, n));
  const auto encoded = Format::Encode(Finish<Format, kAverage>(sum, divisor));
  for (size_t k = 0; k < n_outs; ++k) StorePart(encoded, Format::kMemory, static_cast<T*>(outs[k]) + i, n);
}

// Whole vectors from element i on, four at a time and then one; returns the first element that is left. kStream: all
// outputs are aligned there.
template <class Format, class Op, bool kAverage, bool kStream>
size_t FoldWhole(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t i, size_t count,
                 VectorOf<Format> divisor) {
  using T = ElementOf<Format>;
  using Raw = hn::Vec<std::remove_const_t<decltype(Format::kMemory)>>;
  const size_t lanes = hn::Lanes(Format::kTag);
  // Highway streams 16 bytes at least: a vector of eight 8-bit elements would write beyond itself.
  constexpr bool kFillsStore = hn::MaxLanes(std::remove_const_t<decltype(Format::kMemory)>()) * sizeof(T) >= 16;
  const auto put = [](Raw v, T* to) HWY_ATTR {
    if constexpr (kStream && kFillsStore) {
      hn::Stream(v, Format::kMemory, to);
    } else {
      hn::StoreU(v, Format::kMemory, to);
    }
  };
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const T* p = static_cast<const T*>(ins[0]) + i;
    auto a = Load<Format>(p);
    auto b = Load<Format>(p + lanes);
    auto c = Load<Format>(p + 2 * lanes);
    auto d = Load<Format>(p + 3 * lanes);
    for (size_t k = 1; k < n_ins; ++k) {
      p = static_cast<const T*>(ins[k]) + i;
      a = Op()(a, Load<Format>(p));
      b = Op()(b, Load<Format>(p + lanes));
      c = Op()(c, Load<Format>(p + 2 * lanes));
      d = Op()(d, Load<Format>(p + 3 * lanes));
    }
    const Raw ra = Format::Encode(Finish<Format, kAverage>(a, divisor));
    const Raw rb = Format::Encode(Finish<Format, kAverage>(b, divisor));
    const Raw rc = Format::Encode(Finish<Format, kAverage>(c, divisor));
    const Raw rd = Format::Encode(Finish<Format, kAverage>(d, divisor));
    for (size_t k = 0; k < n_outs; ++k) {
      T* to = static_cast<T*>(outs[k]) + i;
      put(ra, to);
      put(rb, to + lanes);
      put(rc, to + 2 * lanes);
      put(rd, to + 3 * lanes);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    auto sum = Load<Format>(static_cast<const T*>(ins[0]) + i);
    for (size_t k = 1; k < n_ins; ++k) sum = Op()(sum, Load<Format>(static_cast<const T*>(ins[k]) + i));
    const Raw encoded = Format::Encode(Finish<Format, kAverage>(sum, divisor));
    for (size_t k = 0; k < n_outs; ++k) put(encoded, static_cast<T*>(outs[k]) + i);
  }
  return i;
}

// Elements until all outputs are aligned to `bytes`, or `count` where they never are together.
template <typename T>
size_t UntilAligned(void* const* outs, size_t n_outs, size_t bytes, size_t count) {
  const size_t beyond = reinterpret_cast<uintptr_t>(outs[0]) % bytes;
  for (size_t k = 1; k < n_outs; ++k) {
    if (reinterpret_cast<uintptr_t>(outs[k]) % bytes != beyond) return count;
  }
  if (beyond % sizeof(T) != 0) return count;
  return beyond == 0 ? 0 : (bytes - beyond) / sizeof(T);
}

template <class Format, class Op, bool kAverage>
void Fold(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t count, bool stream) {
  using T = ElementOf<Format>;
  if (n_ins == 1 && !std::is_same_v<Format, Plain<T>>) {  // as it is, also a NaN's payload
    return Fold<Plain<T>, Sum, false>(outs, n_outs, ins, n_ins, count, stream);
  }
  const auto divisor = hn::Set(Format::kTag, static_cast<hn::TFromV<VectorOf<Format>>>(n_ins));
  const size_t lanes = hn::Lanes(Format::kTag);
  // A vector that lies on two lines costs two accesses. The parts of equal buffers mostly begin at equal places of a
  // line, so that what aligns the outputs aligns the operands too.
  const size_t aligned = n_outs > 0 ? UntilAligned<T>(outs, n_outs, lanes * sizeof(T), count) : count;
  const bool whole_lines = aligned < count;
  size_t i = whole_lines ? aligned : 0;
  if (i > 0) FoldPart<Format, Op, kAverage>(outs, n_outs, ins, n_ins, 0, i, divisor);
  if (stream && whole_lines) {
    i = FoldWhole<Format, Op, kAverage, true>(outs, n_outs, ins, n_ins, i, count, divisor);
    hwy::FlushStream();
  } else {
    i = FoldWhole<Format, Op, kAverage, false>(outs, n_outs, ins, n_ins, i, count, divisor);
  }
  if (i < count) FoldPart<Format, Op, kAverage>(outs, n_outs, ins, n_ins, i, count - i, divisor);
}

FoldKernel FindFold(DataType dtype, ReduceOp op) {
  return WithFormatAndOp<FoldKernel>(dtype, op, [](auto format, auto operation) -> FoldKernel {
    return Fold<decltype(format), decltype(operation), false>;
  });
}

// Null for integers.
FoldKernel FindAverage(DataType dtype) {
  return WithFormat<FoldKernel>(dtype, [](auto format) -> FoldKernel {
    if constexpr (std::is_floating_point_v<hn::TFromV<VectorOf<decltype(format)>>>) {
      return Fold<decltype(format), Sum, true>;
    } else {
      return nullptr;
    }
  });
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

COHORT_VERSIONS(FindFold);
COHORT_VERSIONS(FindAverage);

}  // namespace

FoldKernel FindFoldKernel(DataType dtype, ReduceOp op) { return COHORT_BEST_VERSION(FindFold)(dtype, op); }

FoldKernel FindAverageFoldKernel(DataType dtype) {
  if (SizeOf(dtype) > 0 && !IsFloat(dtype)) return FindIntegerMeanFoldKernel(dtype);
  return COHORT_BEST_VERSION(FindAverage)(dtype);
}

}  // namespace cohort::comm
#endif  // HWY_ONCE
