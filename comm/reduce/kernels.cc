// Compiled once for each instruction set (Highway's foreach_target includes this file again); HWY_DYNAMIC_DISPATCH
// picks the best one of this CPU when a kernel is looked up, so the kernels themselves are called directly.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce/kernels.cc"
// clang-format off: this order
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "comm/reduce/formats.inc"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Quotient {
  template <class V>
  V operator()(V a, V b) const {
    return hn::Div(a, b);
  }
};

template <class Format, class Op>
void Apply(void* dst_bytes, const void* a_bytes, const void* b_bytes, size_t count) {
  using T = typename Format::Element;
  T* dst = static_cast<T*>(dst_bytes);
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  const size_t lanes = hn::Lanes(Format::kTag);
  size_t i = 0;
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

template <class Format>
void DivideFloats(void* bytes, size_t count, int divisor) {
  using T = typename Format::Element;
  T* data = static_cast<T*>(bytes);
  const auto by = hn::Set(Format::kTag, static_cast<hn::TFromV<typename Format::V>>(divisor));
  const size_t lanes = hn::Lanes(Format::kTag);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) Store<Format>(Quotient()(Load<Format>(data + i), by), data + i);
  const size_t rest = count - i;
  if (rest > 0) StoreFirst<Format>(Quotient()(LoadFirst<Format>(data + i, rest), by), data + i, rest);
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
