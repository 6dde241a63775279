// The types that tests of reductions run through, and values that find mistakes.
#pragma once

#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/types.h"
#include "gtest/gtest.h"
#include "tests/comm/reduce/scalar_reference.h"

namespace cohort::comm {

template <typename T>
struct Type {
  static constexpr DataType kDataType = DataTypeOf<T>::kValue;
};
template <>
struct Type<ReferenceFloat16> {
  static constexpr DataType kDataType = DataType::kFloat16;
};
template <>
struct Type<ReferenceBFloat16> {
  static constexpr DataType kDataType = DataType::kBFloat16;
};
template <>
struct Type<ReferenceFloat8E4M3> {
  static constexpr DataType kDataType = DataType::kFloat8E4M3;
};
template <>
struct Type<ReferenceFloat8E5M2> {
  static constexpr DataType kDataType = DataType::kFloat8E5M2;
};

template <typename T>
std::string Show(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(bits));
  return text;
}

// Random bits: all magnitudes, denormals, infinities and NaNs come up; every fourth value is one of the edges.
template <typename T>
T RandomValue(std::mt19937_64& random) {
  const uint64_t edges[] = {0, 1, uint64_t{1} << (8 * sizeof(T) - 1),  // -0, the most negative integer
                            (uint64_t{1} << (8 * sizeof(T) - 1)) - 1,  // the largest integer, a NaN
                            ~uint64_t{0}};
  const uint64_t bits = random() % 4 == 0 ? edges[random() % 5] : random();
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
  if constexpr (std::is_floating_point_v<T>) {
    const T specials[] = {std::numeric_limits<T>::infinity(),
                          -std::numeric_limits<T>::infinity(),
                          std::numeric_limits<T>::quiet_NaN(),
                          std::numeric_limits<T>::denorm_min(),
                          T{1},
                          T{-1.5}};
    if (random() % 4 == 0) value = specials[random() % 6];
  }
  return value;
}

using AllTypes =
    testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, ReferenceFloat16,
                   ReferenceBFloat16, ReferenceFloat8E4M3, ReferenceFloat8E5M2, float, double>;

inline std::vector<ReduceOp> OpsOf(DataType dtype) {
  std::vector<ReduceOp> ops;
  for (int op = 1; op < kReduceOps; ++op) {
    const auto candidate = static_cast<ReduceOp>(op);
    if (FindReduceKernel(dtype, candidate) != nullptr) ops.push_back(candidate);
  }
  return ops;
}

}  // namespace cohort::comm
