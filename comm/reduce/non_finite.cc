// In every format, a number without its sign is finite when, as an integer, it is below that of infinity, or of NaN
// where there is no infinity. So it is enough to look at the largest of a block.
//
// Compiled once for each instruction set, as kernels.cc.
#include "cohort/comm/reduce/non_finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cohort/comm/reduce/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cohort/comm/reduce/non_finite.cc"
// clang-format off: this order
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether all of `count` elements, seen as T without their sign, are below `limit`. Signed comparisons, which CPUs
// have for all widths, see the same order: the sign is gone.
template <typename T>
bool AllBelow(const void* data, size_t count, T limit) {
  const hn::ScalableTag<T> tag;
  constexpr size_t kBlock = 16384 / sizeof(T);  // elements between two looks at the result
  const size_t lanes = hn::Lanes(tag);
  const auto magnitude = hn::Set(tag, static_cast<T>(~(T{1} << (8 * sizeof(T) - 1))));
  const auto bound = hn::Set(tag, static_cast<T>(limit - 1));
  const T* const elements = static_cast<const T*>(data);
  size_t i = 0;
  while (i + lanes <= count) {
    const size_t end = std::min(count, i + kBlock);
    auto largest = hn::Zero(tag);
    auto also = hn::Zero(tag);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      largest = hn::Max(largest, hn::And(hn::LoadU(tag, elements + i), magnitude));
      also = hn::Max(also, hn::And(hn::LoadU(tag, elements + i + lanes), magnitude));
    }
    for (; i + lanes <= end; i += lanes) {
      largest = hn::Max(largest, hn::And(hn::LoadU(tag, elements + i), magnitude));
    }
    if (!hn::AllFalse(tag, hn::Gt(hn::Max(largest, also), bound))) return false;
    if (end == count) break;
  }
  for (; i < count; ++i) {
    T element;
    std::memcpy(&element, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof element);
    if (static_cast<T>(element & static_cast<T>(~(T{1} << (8 * sizeof(T) - 1)))) >= limit) return false;
  }
  return true;
}

bool IsFiniteEverywhere(DataType dtype, const void* data, size_t count) {
  switch (dtype) {
    case DataType::kFloat64:
      return AllBelow<int64_t>(data, count, 0x7ff0'0000'0000'0000);
    case DataType::kFloat32:
      return AllBelow<int32_t>(data, count, 0x7f80'0000);
    case DataType::kFloat16:
      return AllBelow<int16_t>(data, count, 0x7c00);
    case DataType::kBFloat16:
      return AllBelow<int16_t>(data, count, 0x7f80);
    case DataType::kFloat8E4M3:
      return AllBelow<int8_t>(data, count, 0x7f);
    case DataType::kFloat8E5M2:
      return AllBelow<int8_t>(data, count, 0x7c);
    default:
      return true;
  }
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

COHORT_VERSIONS(IsFiniteEverywhere);

// A format's infinity, and its bits. A value above infinity is NaN; float8_e4m3, which has none, begins with NaN.
struct Infinity {
  uint64_t value;
  bool is_nan = false;
};

Infinity InfinityOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return {0x7ff0'0000'0000'0000};
    case DataType::kFloat32:
      return {0x7f80'0000};
    case DataType::kFloat16:
      return {0x7c00};
    case DataType::kBFloat16:
      return {0x7f80};
    case DataType::kFloat8E4M3:
      return {0x7f, true};
    case DataType::kFloat8E5M2:
      return {0x7c};
    default:
      return {~uint64_t{0}};
  }
}

}  // namespace

bool AllFinite(DataType dtype, const void* data, size_t count) {
  return !IsFloat(dtype) || COHORT_BEST_VERSION(IsFiniteEverywhere)(dtype, data, count);
}

NonFinite CountNonFinite(DataType dtype, const void* data, size_t count) {
  NonFinite result;
  if (!IsFloat(dtype)) return result;
  const size_t size = SizeOf(dtype);
  const Infinity infinity = InfinityOf(dtype);
  const uint64_t magnitude = ~uint64_t{0} >> (65 - 8 * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const std::byte*>(data) + i * size, size);
    bits &= magnitude;
    if (bits < infinity.value) continue;
    const bool nan = bits > infinity.value || infinity.is_nan;
    if (result.nans + result.infinities == 0) {
      result.first = i;
      result.first_is_nan = nan;
    }
    ++(nan ? result.nans : result.infinities);
  }
  return result;
}

}  // namespace cohort::comm
#endif  // HWY_ONCE
