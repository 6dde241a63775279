// The arithmetic of reductions, one element at a time: how elements lie in memory, what they are computed in, and the
// operations. Compiled for the device by nvcc and for the host by tests; gives the bits that comm/reduce's kernels give
// (comm/reduce/reduce.h says which), but for the payload of NaNs. No multiply may be fused with an add: nvcc
// -fmad=false, g++ -ffp-contract=off.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define COHORT_ON_DEVICE __host__ __device__ __forceinline__
#define COHORT_NOT_UNROLLED _Pragma("unroll 1")  // of a loop: the kernels are many
#else
#define COHORT_ON_DEVICE inline
#define COHORT_NOT_UNROLLED
#endif

namespace cohort::comm::cuda {

COHORT_ON_DEVICE uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
COHORT_ON_DEVICE float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
COHORT_ON_DEVICE bool IsNan(T value) {
  return value != value;
}
COHORT_ON_DEVICE bool IsNegative(float value) { return BitsOf(value) >> 31 != 0; }
COHORT_ON_DEVICE bool IsNegative(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits >> 63 != 0;
}

// Integers wrap around, signed ones too: computed unsigned.
template <typename T>
using Wrapping = std::conditional_t<(sizeof(T) > 8), T, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;

struct Sum {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
// NaN if either is NaN; -0 is less than +0.
struct Minimum {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? a : b;
    } else {
      if (IsNan(a) || IsNan(b)) return a + b;
      if (a == b) return IsNegative(a) ? a : b;
      return a < b ? a : b;
    }
  }
};
struct Maximum {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? b : a;
    } else {
      if (IsNan(a) || IsNan(b)) return a + b;
      if (a == b) return IsNegative(a) ? b : a;
      return a < b ? b : a;
    }
  }
};
struct BitAnd {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  static COHORT_ON_DEVICE T Apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// The type in which a mean of integers is summed: it holds the sum of 2^24 of them, as comm/reduce/integer_mean.h.
template <typename T>
struct WideInteger {
  using type = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
};
template <>
struct WideInteger<int64_t> {
  __extension__ using type = __int128;
};
template <>
struct WideInteger<uint64_t> {
  __extension__ using type = unsigned __int128;
};

// A format: Element, as it lies in memory; Number, what is computed in.
template <typename T>
struct Plain {
  using Element = T;
  using Number = T;
  static COHORT_ON_DEVICE T Decode(T element) { return element; }
  static COHORT_ON_DEVICE T Encode(T number) { return number; }
};

struct BFloat16 {
  using Element = uint16_t;
  using Number = float;
  static COHORT_ON_DEVICE float Decode(uint16_t element) { return FloatOf(static_cast<uint32_t>(element) << 16); }
  static COHORT_ON_DEVICE uint16_t Encode(float number) {
    const uint32_t bits = BitsOf(number);
    if (IsNan(number)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet, sign kept
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

// Floating-point numbers of up to 16 bits with fewer exponent bits than float32, converted by arithmetic on their bits.
// With kInfinity the highest exponent is that of infinity and NaN; without, only the highest magnitude is NaN.
template <typename Bits, int kExponent, int kMantissa, bool kInfinity>
struct SmallFloat {
  using Element = Bits;
  using Number = float;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t kHighest = (1u << kExponent) - 1;  // exponent
  static constexpr uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  static constexpr int kSignShift = 31 - kExponent - kMantissa;

  static COHORT_ON_DEVICE float Decode(Bits element) {
    const uint32_t number = element;
    const uint32_t sign = (number & (kMagnitude + 1)) << kSignShift;
    const uint32_t shifted = (number & kMagnitude) << kShift;
    const uint32_t exponent = shifted & (kHighest << 23);
    if (kInfinity && exponent == kHighest << 23) return FloatOf(sign | shifted | 0x7f800000u);
    if (!kInfinity && shifted == kMagnitude << kShift) return FloatOf(sign | 0x7fc00000u);
    const uint32_t normal = shifted + (static_cast<uint32_t>(127 - kBias) << 23);
    if (exponent != 0) return FloatOf(sign | normal);
    // Denormal: made normal with a leading one, which is taken away again.
    const float tiny = FloatOf(normal + (1u << 23)) - FloatOf(static_cast<uint32_t>(128 - kBias) << 23);
    return FloatOf(sign | BitsOf(tiny));
  }

  // Nearest, ties to even.
  static COHORT_ON_DEVICE Bits Encode(float number) {
    // The first number that rounds to no finite one however it is rounded.
    constexpr uint32_t kOver = kInfinity ? (kHighest + 127 - kBias) << 23
                                         : (((kMagnitude >> kMantissa) + 127 - kBias) << 23) +
                                               ((kMagnitude & ((1u << kMantissa) - 1)) << kShift);
    constexpr uint32_t kNan = kInfinity ? (kHighest << kMantissa) | (1u << (kMantissa - 1)) : kMagnitude;  // quiet
    constexpr uint32_t kBeyond = kInfinity ? kHighest << kMantissa : kMagnitude;
    const uint32_t sign = BitsOf(number) & 0x80000000u;
    const uint32_t bits = BitsOf(number) ^ sign;
    uint32_t magnitude;
    if (bits > 255u << 23) {
      magnitude = kNan;
    } else if (bits >= kOver) {
      magnitude = kBeyond;
    } else if (bits < static_cast<uint32_t>(128 - kBias) << 23) {
      // A power of two whose last mantissa bit is the smallest denormal: adding it rounds.
      constexpr uint32_t kUnit = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;
      magnitude = BitsOf(FloatOf(bits) + FloatOf(kUnit)) - kUnit;
    } else {
      constexpr uint32_t kRebias = static_cast<uint32_t>(kBias - 127) << 23;
      constexpr uint32_t kRound = (1u << (kShift - 1)) - 1;
      magnitude = (bits + kRebias + kRound + (bits >> kShift & 1)) >> kShift;
    }
    return static_cast<Bits>(sign >> kSignShift | magnitude);
  }
};
using Float16 = SmallFloat<uint16_t, 5, 10, true>;
using Float8E4M3 = SmallFloat<uint8_t, 4, 3, false>;
using Float8E5M2 = SmallFloat<uint8_t, 5, 2, true>;

}  // namespace cohort::comm::cuda
