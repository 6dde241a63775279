// Compiled once for each instruction set (Highway's foreach_target includes this file again); COHORT_BEST_VERSION
// picks the best one of this CPU when a kernel is looked up, so the kernels themselves are called directly.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cohort/comm/reduce/instruction_set.h"
#include "cohort/comm/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cohort/comm/reduce/kernels.cc"
// clang-format off: this order
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "cohort/comm/reduce/formats.inc"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors that an aligned loop must have to gain more than the part of a vector before it costs.
constexpr size_t kWorthAligning = 16;

// Elements of 4 or 8 bytes, 8 bytes at a time, then 4. LoadFirst takes less than a vector through memory.
template <class Op, typename T>
HWY_INLINE void ApplyFew(T* dst, const T* a, const T* b, size_t count) {
  const hn::CappedTag<T, 8 / sizeof(T)> eight;
  constexpr size_t kLanes = 8 / sizeof(T);
  for (; count >= kLanes; count -= kLanes) {
    hn::StoreU(Op()(hn::LoadU(eight, a), hn::LoadU(eight, b)), eight, dst);
    a += kLanes;
    b += kLanes;
    dst += kLanes;
  }
  if constexpr (kLanes > 1) {
    // By memcpy: to the compiler, the instruction for one lane wants a pointer that is aligned for its type.
    if (count > 0) {
      const hn::CappedTag<T, 1> one;
      T left, right;
      std::memcpy(&left, a, sizeof left);
      std::memcpy(&right, b, sizeof right);
      const T result = hn::GetLane(Op()(hn::Set(one, left), hn::Set(one, right)));
      std::memcpy(dst, &result, sizeof result);
    }
  }
}

template <class Format, class Op>
HWY_NOINLINE void ApplyMany(void* dst_bytes, const void* a_bytes, const void* b_bytes, size_t count) {
  using T = typename Format::Element;
  T* dst = static_cast<T*>(dst_bytes);
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  const size_t lanes = hn::Lanes(Format::kTag);
  size_t i = 0;
  // A vector that lies on two lines costs two accesses.
  const size_t beyond = reinterpret_cast<uintptr_t>(dst) % (lanes * sizeof(T));
  if (beyond != 0 && beyond % sizeof(T) == 0 && count >= kWorthAligning * lanes) {
    i = lanes - beyond / sizeof(T);
    StoreFirst<Format>(Op()(LoadFirst<Format>(a, i), LoadFirst<Format>(b, i)), dst, i);
  }
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto first = Op()(Load<Format>(a + i), Load<Format>(b + i));
    const auto second = Op()(Load<Format>(a + i + lanes), Load<Format>(b + i + lanes));
    Store<Format>(first, dst + i);
    Store<Format>(second, dst + i + lanes);
  }
  if (i + lanes <= count) {
    Store<Format>(Op()(Load<Format>(a + i), Load<Format>(b + i)), dst + i);
    i += lanes;
  }
  const size_t rest = count - i;
  if (rest > 0) StoreFirst<Format>(Op()(LoadFirst<Format>(a + i, rest), LoadFirst<Format>(b + i, rest)), dst + i, rest);
}

template <class Format, class Op>
void Apply(void* dst, const void* a, const void* b, size_t count) {
  using T = typename Format::Element;
  if constexpr (std::is_same_v<Format, Plain<T>> && sizeof(T) >= 4 && HWY_TARGET != HWY_SCALAR) {
    if (count < hn::Lanes(Format::kTag)) {
      return ApplyFew<Op>(static_cast<T*>(dst), static_cast<const T*>(a), static_cast<const T*>(b), count);
    }
  }
  ApplyMany<Format, Op>(dst, a, b, count);
}

ReduceKernel FindKernel(DataType dtype, ReduceOp op) {
  return WithFormatAndOp<ReduceKernel>(dtype, op, [](auto format, auto operation) -> ReduceKernel {
    return Apply<decltype(format), decltype(operation)>;
  });
}

struct MeanOfTwo {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Mul(hn::Add(a, b), hn::Set(hn::DFromV<V>(), 0.5f));  // as exact as a division by 2
  }
};

ReduceKernel FindMean(DataType dtype) {
  return WithFormat<ReduceKernel>(dtype, [](auto format) -> ReduceKernel {
    using Format = decltype(format);
    if constexpr (std::is_same_v<Format, Plain<typename Format::Element>>) {
      return nullptr;
    } else {
      return Apply<Format, MeanOfTwo>;
    }
  });
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

COHORT_VERSIONS(FindKernel);
COHORT_VERSIONS(FindMean);

}  // namespace

ReduceKernel FindReduceKernel(DataType dtype, ReduceOp op) { return COHORT_BEST_VERSION(FindKernel)(dtype, op); }

ReduceKernel FindMeanOfTwoKernel(DataType dtype) { return COHORT_BEST_VERSION(FindMean)(dtype); }

}  // namespace cohort::comm
#endif  // HWY_ONCE
