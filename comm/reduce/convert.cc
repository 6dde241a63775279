// The work of reductions before and after they combine: factors, divisors, and the conversion to and from the type that
// is computed in. Compiled once for each instruction set, as kernels.cc.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cohort/comm/reduce/instruction_set.h"
#include "cohort/comm/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cohort/comm/reduce/convert.cc"
// clang-format off: this order
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "cohort/comm/reduce/formats.inc"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {

struct Multiply {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};
struct Divide {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Div(a, b);
  }
};
struct Same {
  template <class V>
  V operator()(V a, V) const {
    return a;
  }
};

// dst = src op number, in the vectors that both formats share.
template <class To, class From, class Op>
void Convert(void* dst_bytes, const void* src_bytes, size_t count, double number) {
  auto* dst = static_cast<ElementOf<To>*>(dst_bytes);
  const auto* src = static_cast<const ElementOf<From>*>(src_bytes);
  const auto by = hn::Set(To::kTag, static_cast<hn::TFromV<VectorOf<To>>>(number));
  const size_t lanes = hn::Lanes(To::kTag);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto first = Op()(Load<From>(src + i), by);
    const auto second = Op()(Load<From>(src + i + lanes), by);
    Store<To>(first, dst + i);
    Store<To>(second, dst + i + lanes);
  }
  for (; i < count; i += lanes) {
    const size_t n = count - i < lanes ? count - i : lanes;
    if (n == lanes) {
      Store<To>(Op()(Load<From>(src + i), by), dst + i);
    } else {
      StoreFirst<To>(Op()(LoadFirst<From>(src + i, n), by), dst + i, n);
    }
  }
}

using Converter = void (*)(void* dst, const void* src, size_t count, double number);

// To the accumulator times a factor, from the accumulator divided, or within the type divided. Null for integers.
Converter FindConverter(DataType dtype, char what, bool by_one) {
  return WithFormat<Converter>(dtype, [=](auto format) -> Converter {
    using Format = decltype(format);
    using Number = hn::TFromV<VectorOf<Format>>;
    if constexpr (std::is_floating_point_v<Number>) {
      using Wide = Plain<Number>;
      if (what == 'p') return by_one ? Convert<Wide, Format, Same> : Convert<Wide, Format, Multiply>;
      if (what == 'f') return by_one ? Convert<Format, Wide, Same> : Convert<Format, Wide, Divide>;
      return Convert<Format, Format, Divide>;
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

COHORT_VERSIONS(FindConverter);

// 64 bits hold every divisor and every narrower element.
struct Quotient {
  template <typename Wide>
  Wide operator()(Wide value, Wide divisor) const {
    return value / divisor;
  }
};
struct Times {
  template <typename Wide>
  Wide operator()(Wide value, Wide factor) const {
    return static_cast<Wide>(static_cast<uint64_t>(value) * static_cast<uint64_t>(factor));
  }
};

// Averages and factors of integers are rare: one element at a time.
template <typename T, class Op>
void EachInteger(void* dst_bytes, const void* src_bytes, size_t count, double number) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const auto by = static_cast<Wide>(number);
  auto* dst = static_cast<std::byte*>(dst_bytes);
  const auto* src = static_cast<const std::byte*>(src_bytes);
  for (size_t i = 0; i < count * sizeof(T); i += sizeof(T)) {
    T value;
    std::memcpy(&value, src + i, sizeof value);
    value = static_cast<T>(Op()(static_cast<Wide>(value), by));
    std::memcpy(dst + i, &value, sizeof value);
  }
}

template <class Op>
void Integers(DataType dtype, void* dst, const void* src, size_t count, double number) {
  switch (dtype) {
    case DataType::kInt8:
      return EachInteger<int8_t, Op>(dst, src, count, number);
    case DataType::kUint8:
      return EachInteger<uint8_t, Op>(dst, src, count, number);
    case DataType::kInt16:
      return EachInteger<int16_t, Op>(dst, src, count, number);
    case DataType::kUint16:
      return EachInteger<uint16_t, Op>(dst, src, count, number);
    case DataType::kInt32:
      return EachInteger<int32_t, Op>(dst, src, count, number);
    case DataType::kUint32:
      return EachInteger<uint32_t, Op>(dst, src, count, number);
    case DataType::kInt64:
      return EachInteger<int64_t, Op>(dst, src, count, number);
    default:
      return EachInteger<uint64_t, Op>(dst, src, count, number);
  }
}

}  // namespace

DataType AccumulatorOf(DataType dtype) { return IsSmallFloat(dtype) ? DataType::kFloat32 : dtype; }

void Prepare(DataType dtype, void* dst, const void* src, size_t count, double factor) {
  if (!IsFloat(dtype)) return Integers<Times>(dtype, dst, src, count, factor);
  COHORT_BEST_VERSION(FindConverter)(dtype, 'p', factor == 1)(dst, src, count, factor);
}

void Finish(DataType dtype, void* dst, const void* src, size_t count, int divisor) {
  if (!IsFloat(dtype)) return Integers<Quotient>(dtype, dst, src, count, divisor);
  COHORT_BEST_VERSION(FindConverter)(dtype, 'f', divisor == 1)(dst, src, count, divisor);
}

void DivideBy(DataType dtype, void* data, size_t count, int divisor) {
  if (!IsFloat(dtype)) return Integers<Quotient>(dtype, data, data, count, divisor);
  COHORT_BEST_VERSION(FindConverter)(dtype, 'd', divisor == 1)(data, data, count, divisor);
}

}  // namespace cohort::comm
#endif  // HWY_ONCE
