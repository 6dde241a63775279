// The reductions one element at a time, written from their definitions: what the vector kernels are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "cohort/comm/types.h"

namespace cohort::comm {

// Floating-point numbers of up to 16 bits with `kExponent` exponent bits. Without kInfinity only the highest magnitude
// is no number: NaN.
template <typename Bits, int kExponent, bool kInfinity = true>
struct Small {
  static constexpr int kMantissa = 8 * static_cast<int>(sizeof(Bits)) - 1 - kExponent;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kSpecial = (1 << kExponent) - 1;
  static constexpr int kSign = 1 << (kExponent + kMantissa);

  Bits bits = 0;

  double ToDouble() const {
    const int exponent = (bits >> kMantissa) & kSpecial;
    const int mantissa = bits & ((1 << kMantissa) - 1);
    const double sign = (bits & kSign) != 0 ? -1.0 : 1.0;
    if (kInfinity && exponent == kSpecial) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (!kInfinity && (bits & (kSign - 1)) == kSign - 1) return std::numeric_limits<double>::quiet_NaN();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissa);
    return sign * std::ldexp((1 << kMantissa) + mantissa, exponent - kBias - kMantissa);
  }

  // Nearest, ties to even.
  static Small FromDouble(double value) {
    const int sign = std::signbit(value) ? kSign : 0;
    constexpr int kBeyond = kInfinity ? kSpecial << kMantissa : kSign - 1;  // infinity, or NaN where there is none
    if (std::isnan(value)) return {static_cast<Bits>(sign | kBeyond | 1)};
    if (std::isinf(value)) return {static_cast<Bits>(sign | kBeyond)};
    int exponent = value == 0 ? 1 - kBias : std::ilogb(value);
    exponent = std::max(exponent, 1 - kBias);
    const auto units = static_cast<int64_t>(std::nearbyint(std::ldexp(std::fabs(value), kMantissa - exponent)));
    // Counting in units of the last place, the bits of neighbouring numbers are neighbours, into infinity.
    const int64_t magnitude = units + (int64_t{exponent + kBias - 1} << kMantissa);
    return {static_cast<Bits>(sign | std::min<int64_t>(magnitude, kBeyond))};
  }
};
using ReferenceFloat16 = Small<uint16_t, 5>;
using ReferenceBFloat16 = Small<uint16_t, 8>;
using ReferenceFloat8E4M3 = Small<uint8_t, 4, false>;
using ReferenceFloat8E5M2 = Small<uint8_t, 5>;

template <typename T>
T ReferenceFloatOp(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kProduct) return a * b;
  if (op != ReduceOp::kMin && op != ReduceOp::kMax) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return std::signbit(a) == (op == ReduceOp::kMin) ? a : b;  // of two zeros, -0 is the smaller one
  return (a < b) == (op == ReduceOp::kMin) ? a : b;
}

template <typename T>
T ReferenceOp(T a, T b, ReduceOp op) {
  if constexpr (std::is_floating_point_v<T>) {
    return ReferenceFloatOp(a, b, op);
  } else if constexpr (std::is_integral_v<T>) {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<T>(left * right);
      case ReduceOp::kMin:
        return a < b ? a : b;
      case ReduceOp::kMax:
        return a < b ? b : a;
      case ReduceOp::kBand:
        return static_cast<T>(left & right);
      case ReduceOp::kBor:
        return static_cast<T>(left | right);
      case ReduceOp::kBxor:
        return static_cast<T>(left ^ right);
      default:
        return static_cast<T>(left + right);
    }
  } else {
    // As the kernels: in float32, then rounded once more.
    const auto x = static_cast<float>(a.ToDouble());
    const auto y = static_cast<float>(b.ToDouble());
    return T::FromDouble(static_cast<double>(ReferenceFloatOp(x, y, op)));
  }
}

template <typename T>
T ReferenceDivide(T a, int divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return a / static_cast<T>(divisor);
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_signed_v<T>) return static_cast<T>(int64_t{a} / divisor);
    return static_cast<T>(static_cast<uint64_t>(a) / static_cast<uint64_t>(divisor));
  } else {
    return T::FromDouble(static_cast<double>(static_cast<float>(a.ToDouble()) / static_cast<float>(divisor)));
  }
}

// The operands combined from the left; smaller numbers in float32, with one rounding at the end.
template <typename T>
T ReferenceFold(const std::vector<T>& operands, ReduceOp op, bool average) {
  const auto n = static_cast<int>(operands.size());
  if (n == 1) return operands[0];
  if constexpr (std::is_integral_v<T>) {
    if (average) {  // which does not wrap around
      __extension__ using Wide = __int128;
      Wide sum = 0;
      for (const T operand : operands) sum += operand;
      return static_cast<T>(sum / n);
    }
  }
  if constexpr (std::is_floating_point_v<T> || std::is_integral_v<T>) {
    T result = operands[0];
    for (int i = 1; i < n; ++i) result = ReferenceOp(result, operands[static_cast<size_t>(i)], op);
    return average ? ReferenceDivide(result, n) : result;
  } else {
    auto result = static_cast<float>(operands[0].ToDouble());
    for (int i = 1; i < n; ++i) {
      result = ReferenceFloatOp(result, static_cast<float>(operands[static_cast<size_t>(i)].ToDouble()), op);
    }
    return T::FromDouble(static_cast<double>(average ? result / static_cast<float>(n) : result));
  }
}

// Equal bits, or both NaN.
template <typename T>
bool SameValue(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
  } else if constexpr (std::is_integral_v<T>) {
    return a == b;
  } else {
    return a.bits == b.bits || (std::isnan(a.ToDouble()) && std::isnan(b.ToDouble()));
  }
}

}  // namespace cohort::comm
