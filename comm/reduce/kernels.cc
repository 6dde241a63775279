// Compiled once for each instruction set (Highway's foreach_target includes this file again); HWY_DYNAMIC_DISPATCH
// picks the best one of this CPU when a kernel is looked up, so the kernels themselves are called directly.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class V>
  V operator()(V a, V b) const {
    using T = hn::TFromV<V>;
    if constexpr (sizeof(T) == 1 && HWY_TARGET == HWY_SCALAR) {
      return hn::Set(hn::DFromV<V>(), static_cast<T>(hn::GetLane(a) * hn::GetLane(b)));
    } else if constexpr (sizeof(T) == 1) {  // CPUs multiply from 16 bits on: the odd bytes, then the even ones
      const hn::RepartitionToWide<hn::RebindToUnsigned<hn::DFromV<V>>> wide;
      const auto low = hn::Set(wide, 0xff);
      const auto a16 = hn::BitCast(wide, a);
      const auto b16 = hn::BitCast(wide, b);
      const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(hn::DFromV<V>(), hn::Or(odd, hn::And(hn::Mul(a16, b16), low)));
    } else {
      return hn::Mul(a, b);
    }
  }
};

// The CPUs' own minima give their second operand where one is NaN or both are zeros.
struct Minimum {
  template <class V>
  V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      const V least = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), hn::Min(a, b));
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Add(a, b), least);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Maximum {
  template <class V>
  V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
      const V most = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), hn::Max(a, b));
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Add(a, b), most);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct Quotient {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Div(a, b);
  }
};

// How elements lie in memory and what they are computed in. Load and Store move one vector's worth.
template <typename T>
struct Plain {
  using Element = T;
  static constexpr hn::ScalableTag<T> kTag = {};
  using V = hn::Vec<hn::ScalableTag<T>>;
  static V Load(const T* p) { return hn::LoadU(kTag, p); }
  static void Store(V v, T* p) { hn::StoreU(v, kTag, p); }
};

using FloatTag = hn::ScalableTag<float>;
using FloatV = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsV = hn::Vec<BitsTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;

HWY_INLINE BitsV Constant(uint32_t value) { return hn::Set(BitsTag(), value); }
HWY_INLINE FloatV AsFloat(BitsV bits) { return hn::BitCast(FloatTag(), bits); }
HWY_INLINE BitsV AsBits(FloatV v) { return hn::BitCast(BitsTag(), v); }
HWY_INLINE BitsV Select(hn::Mask<BitsTag> mask, BitsV yes, BitsV no) { return hn::IfThenElse(mask, yes, no); }

HWY_INLINE BitsV LoadHalf(const uint16_t* p) { return hn::PromoteTo(BitsTag(), hn::LoadU(HalfTag(), p)); }
// The low halves; the high ones are 0.
HWY_INLINE void StoreHalf(BitsV bits, uint16_t* p) {
  hn::StoreU(hn::DemoteTo(HalfTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), bits)), HalfTag(), p);
}

struct BFloat16 {
  using Element = uint16_t;
  static constexpr FloatTag kTag = {};
  using V = FloatV;
  static V Load(const uint16_t* p) { return AsFloat(hn::ShiftLeft<16>(LoadHalf(p))); }
  static void Store(V v, uint16_t* p) {
    const BitsV bits = AsBits(v);
    const BitsV odd = hn::And(hn::ShiftRight<16>(bits), Constant(1));
    const BitsV rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, Constant(0x7fff)), odd));
    const BitsV nan = hn::Or(hn::ShiftRight<16>(bits), Constant(0x40));  // quiet, sign kept
    StoreHalf(Select(hn::RebindMask(BitsTag(), hn::IsNaN(v)), nan, rounded), p);
  }
};

// Conversions on the bits of the numbers, because not every CPU has instructions for them and all must agree. They meet
// no denormal float32, so that flush-to-zero modes do not matter.
struct Float16 {
  using Element = uint16_t;
  static constexpr FloatTag kTag = {};
  using V = FloatV;
  static V Load(const uint16_t* p) {
    const BitsV half = LoadHalf(p);
    const BitsV sign = hn::ShiftLeft<16>(hn::And(half, Constant(0x8000)));
    const BitsV shifted = hn::ShiftLeft<13>(hn::And(half, Constant(0x7fff)));
    const BitsV exponent = hn::And(shifted, Constant(0x0f800000));
    const BitsV normal = hn::Add(shifted, Constant((127 - 15) << 23));
    const BitsV special = hn::Add(normal, Constant((128 - 16) << 23));  // infinity and NaN
    const BitsV tiny =  // denormal: make it normal with a leading one, and take that away again
        AsBits(hn::Sub(AsFloat(hn::Add(normal, Constant(1 << 23))), AsFloat(Constant(113 << 23))));
    const BitsV finite = Select(hn::Eq(exponent, Constant(0)), tiny, normal);
    return AsFloat(hn::Or(sign, Select(hn::Eq(exponent, Constant(0x0f800000)), special, finite)));
  }
  static void Store(V v, uint16_t* p) {
    const BitsV sign = hn::And(AsBits(v), Constant(0x80000000u));
    const BitsV bits = hn::Xor(AsBits(v), sign);
    const BitsV odd = hn::And(hn::ShiftRight<13>(bits), Constant(1));
    const BitsV normal = hn::ShiftRight<13>(hn::Add(hn::Add(bits, Constant(0xc8000fffu)), odd));
    const BitsV half = Constant(126 << 23);  // 0.5f: its last mantissa bit is float16's smallest denormal
    const BitsV tiny = hn::Sub(AsBits(hn::Add(AsFloat(bits), AsFloat(half))), half);
    const BitsV finite = Select(hn::Lt(bits, Constant(113 << 23)), tiny, normal);
    const BitsV infinity = Constant(0x7c00);
    const BitsV nan = Constant(0x7e00);
    const BitsV special = Select(hn::Gt(bits, Constant(255u << 23)), nan, infinity);
    const BitsV magnitude = Select(hn::Lt(bits, Constant(143u << 23)), finite, special);  // below 2^16
    StoreHalf(hn::Or(hn::ShiftRight<16>(sign), magnitude), p);
  }
};

// Elements left over at the end pass through a buffer of one vector, so that all of them are computed alike.
template <class Format, class Op>
void Apply(void* dst_bytes, const void* a_bytes, const void* b_bytes, size_t count) {
  using T = typename Format::Element;
  T* dst = static_cast<T*>(dst_bytes);
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  const size_t lanes = hn::Lanes(Format::kTag);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto first = Op()(Format::Load(a + i), Format::Load(b + i));
    const auto second = Op()(Format::Load(a + i + lanes), Format::Load(b + i + lanes));
    Format::Store(first, dst + i);
    Format::Store(second, dst + i + lanes);
  }
  if (i + lanes <= count) {
    Format::Store(Op()(Format::Load(a + i), Format::Load(b + i)), dst + i);
    i += lanes;
  }
  if (i == count) return;
  HWY_ALIGN T left[HWY_MAX_BYTES / sizeof(T)] = {};
  HWY_ALIGN T right[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(left, a + i, (count - i) * sizeof(T));
  std::memcpy(right, b + i, (count - i) * sizeof(T));
  Format::Store(Op()(Format::Load(left), Format::Load(right)), left);
  std::memcpy(dst + i, left, (count - i) * sizeof(T));
}

template <class Format>
void DivideFloats(void* bytes, size_t count, int divisor) {
  using T = typename Format::Element;
  T* data = static_cast<T*>(bytes);
  const auto by = hn::Set(Format::kTag, static_cast<hn::TFromV<typename Format::V>>(divisor));
  const size_t lanes = hn::Lanes(Format::kTag);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) Format::Store(Quotient()(Format::Load(data + i), by), data + i);
  if (i == count) return;
  HWY_ALIGN T rest[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(rest, data + i, (count - i) * sizeof(T));
  Format::Store(Quotient()(Format::Load(rest), by), rest);
  std::memcpy(data + i, rest, (count - i) * sizeof(T));
}

template <class Format>
ReduceKernel KernelFor(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return Apply<Format, Sum>;
    case ReduceOp::kProduct:
      return Apply<Format, Product>;
    case ReduceOp::kMin:
      return Apply<Format, Minimum>;
    case ReduceOp::kMax:
      return Apply<Format, Maximum>;
  }
  return nullptr;
}

ReduceKernel FindKernel(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kInt8:
      return KernelFor<Plain<int8_t>>(op);
    case DataType::kUint8:
      return KernelFor<Plain<uint8_t>>(op);
    case DataType::kInt16:
      return KernelFor<Plain<int16_t>>(op);
    case DataType::kUint16:
      return KernelFor<Plain<uint16_t>>(op);
    case DataType::kInt32:
      return KernelFor<Plain<int32_t>>(op);
    case DataType::kUint32:
      return KernelFor<Plain<uint32_t>>(op);
    case DataType::kInt64:
      return KernelFor<Plain<int64_t>>(op);
    case DataType::kUint64:
      return KernelFor<Plain<uint64_t>>(op);
    case DataType::kFloat16:
      return KernelFor<Float16>(op);
    case DataType::kBFloat16:
      return KernelFor<BFloat16>(op);
    case DataType::kFloat32:
      return KernelFor<Plain<float>>(op);
    case DataType::kFloat64:
      return KernelFor<Plain<double>>(op);
  }
  return nullptr;
}

using Divider = void (*)(void* data, size_t count, int divisor);

// Null for integers.
Divider FindDivider(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return DivideFloats<Float16>;
    case DataType::kBFloat16:
      return DivideFloats<BFloat16>;
    case DataType::kFloat32:
      return DivideFloats<Plain<float>>;
    case DataType::kFloat64:
      return DivideFloats<Plain<double>>;
    default:
      return nullptr;
  }
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

HWY_EXPORT(FindKernel);
HWY_EXPORT(FindDivider);

// Averages of integers are rare: one element at a time. 64 bits hold every divisor and every narrower element.
template <typename T>
void DivideIntegers(void* bytes, size_t count, int divisor) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  auto* data = static_cast<std::byte*>(bytes);
  for (size_t i = 0; i < count; ++i, data += sizeof(T)) {
    T value;
    std::memcpy(&value, data, sizeof value);
    value = static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
    std::memcpy(data, &value, sizeof value);
  }
}

}  // namespace

ReduceKernel FindReduceKernel(DataType dtype, ReduceOp op) { return HWY_DYNAMIC_DISPATCH(FindKernel)(dtype, op); }

void DivideBy(DataType dtype, void* data, size_t count, int divisor) {
  switch (dtype) {
    case DataType::kInt8:
      return DivideIntegers<int8_t>(data, count, divisor);
    case DataType::kUint8:
      return DivideIntegers<uint8_t>(data, count, divisor);
    case DataType::kInt16:
      return DivideIntegers<int16_t>(data, count, divisor);
    case DataType::kUint16:
      return DivideIntegers<uint16_t>(data, count, divisor);
    case DataType::kInt32:
      return DivideIntegers<int32_t>(data, count, divisor);
    case DataType::kUint32:
      return DivideIntegers<uint32_t>(data, count, divisor);
    case DataType::kInt64:
      return DivideIntegers<int64_t>(data, count, divisor);
    case DataType::kUint64:
      return DivideIntegers<uint64_t>(data, count, divisor);
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return HWY_DYNAMIC_DISPATCH(FindDivider)(dtype)(data, count, divisor);
  }
}

}  // namespace cohort::comm
#endif  // HWY_ONCE
