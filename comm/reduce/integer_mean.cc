#include "cohort/comm/reduce/integer_mean.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cohort::comm {
namespace {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

// The total of elements of type T.
template <typename T>
using Signed = std::conditional_t<sizeof(T) == 1, int32_t, std::conditional_t<sizeof(T) == 8, Int128, int64_t>>;
template <typename T>
using Unsigned = std::conditional_t<sizeof(T) == 1, uint32_t, std::conditional_t<sizeof(T) == 8, Uint128, uint64_t>>;
template <typename T>
using Total = std::conditional_t<std::is_signed_v<T>, Signed<T>, Unsigned<T>>;
static_assert(sizeof(Total<int8_t>) == TotalBytes(DataType::kInt8) &&
              sizeof(Total<uint16_t>) == TotalBytes(DataType::kUint16) &&
              sizeof(Total<int32_t>) == TotalBytes(DataType::kInt32) &&
              sizeof(Total<uint64_t>) == TotalBytes(DataType::kUint64));

template <typename T>
T At(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof value);
  return value;
}

template <typename T>
void Put(void* data, size_t i, T value) {
  std::memcpy(static_cast<std::byte*>(data) + i * sizeof(T), &value, sizeof value);
}

template <typename T>
T Quotient(Total<T> total, int divisor) {
  return static_cast<T>(total / static_cast<Total<T>>(divisor));
}

template <typename T>
struct Mean {
  static void Widen(void* totals, const void* elements, size_t count) {
    for (size_t i = 0; i < count; ++i) Put<Total<T>>(totals, i, At<T>(elements, i));
  }
  static void Divide(void* elements, const void* totals, size_t count, int divisor) {
    for (size_t i = 0; i < count; ++i) Put<T>(elements, i, Quotient<T>(At<Total<T>>(totals, i), divisor));
  }
  // A block that stays in the cache at a time. An output may be an operand, so all operands come first.
  static void Fold(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t count, bool) {
    constexpr size_t kBlock = 256;
    Total<T> totals[kBlock];
    for (size_t at = 0; at < count; at += kBlock) {
      const size_t n = std::min(kBlock, count - at);
      for (size_t i = 0; i < n; ++i) totals[i] = At<T>(ins[0], at + i);
      for (size_t k = 1; k < n_ins; ++k) {
        for (size_t i = 0; i < n; ++i) totals[i] += static_cast<Total<T>>(At<T>(ins[k], at + i));
      }
      for (size_t i = 0; i < n; ++i) {
        const T mean = Quotient<T>(totals[i], static_cast<int>(n_ins));
        for (size_t k = 0; k < n_outs; ++k) Put<T>(outs[k], at + i, mean);
      }
    }
  }
};

// Calls `function` with an object of the Mean of the type.
template <typename Result, typename Function>
Result WithMean(DataType dtype, Function function) {
  switch (dtype) {
    case DataType::kInt8:
      return function(Mean<int8_t>());
    case DataType::kUint8:
      return function(Mean<uint8_t>());
    case DataType::kInt16:
      return function(Mean<int16_t>());
    case DataType::kUint16:
      return function(Mean<uint16_t>());
    case DataType::kInt32:
      return function(Mean<int32_t>());
    case DataType::kUint32:
      return function(Mean<uint32_t>());
    case DataType::kInt64:
      return function(Mean<int64_t>());
    default:
      return function(Mean<uint64_t>());
  }
}

void AddWidest(void* dst, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) Put<Uint128>(dst, i, At<Uint128>(a, i) + At<Uint128>(b, i));
}

void FoldWidest(void* const* outs, size_t n_outs, const void* const* ins, size_t n_ins, size_t count, bool) {
  for (size_t i = 0; i < count; ++i) {
    Uint128 sum = 0;
    for (size_t k = 0; k < n_ins; ++k) sum += At<Uint128>(ins[k], i);
    for (size_t k = 0; k < n_outs; ++k) Put<Uint128>(outs[k], i, sum);
  }
}

// The type of totals that are no wider than elements may be. Signed ones add as unsigned ones do.
DataType NarrowTotal(DataType dtype) { return TotalBytes(dtype) == 4 ? DataType::kUint32 : DataType::kUint64; }

}  // namespace

void ToTotals(DataType dtype, void* totals, const void* elements, size_t count) {
  WithMean<void>(dtype, [=](auto mean) { mean.Widen(totals, elements, count); });
}

void ToMeans(DataType dtype, void* elements, const void* totals, size_t count, int divisor) {
  WithMean<void>(dtype, [=](auto mean) { mean.Divide(elements, totals, count, divisor); });
}

ReduceKernel FindTotalKernel(DataType dtype) {
  return TotalBytes(dtype) == 16 ? AddWidest : FindReduceKernel(NarrowTotal(dtype), ReduceOp::kSum);
}

FoldKernel FindTotalFoldKernel(DataType dtype) {
  return TotalBytes(dtype) == 16 ? FoldWidest : FindFoldKernel(NarrowTotal(dtype), ReduceOp::kSum);
}

FoldKernel FindIntegerMeanFoldKernel(DataType dtype) {
  return WithMean<FoldKernel>(dtype, [](auto mean) -> FoldKernel { return decltype(mean)::Fold; });
}

}  // namespace cohort::comm
