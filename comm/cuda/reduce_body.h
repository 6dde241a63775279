// The work of one thread of a reduction kernel, for any number of threads. nvcc compiles it for the device, and tests
// for the host, which run the threads one after the other.
//
//   fold      out[i] = operand 0 [i] op operand 1 [i] op ... in this order, rounded once
//   prepare   to[i] = from[i] * factor, from elements to the type that they are computed in
//   finish    to[i] = from[i], back, rounded
//
// A thread takes every threads-th piece (grid-stride). Pieces are 16 bytes where all operands lie alike, with single
// elements before and after; else single elements, which may lie at any address.
#pragma once

#include "cohort/comm/cuda/reduce_arithmetic.h"

namespace cohort::comm::cuda {

// Operand k is `own` for k == own_index, else lies at `blocks` + k * stride bytes.
struct FoldArguments {
  void* out = nullptr;
  const void* blocks = nullptr;
  const void* own = nullptr;
  uint64_t stride = 0;
  uint64_t count = 0;  // elements
  int32_t operands = 0;
  int32_t own_index = 0;
};

struct ConvertArguments {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t count = 0;
  double factor = 1;  // of prepare
};

inline constexpr uint64_t kPieceBytes = 16;

template <typename T, int kCount>
struct __attribute__((may_alias, aligned(sizeof(T) * kCount))) Piece {
  T elements[kCount];
};

COHORT_ON_DEVICE const char* OperandOf(const FoldArguments& arguments, int k) {
  return k == arguments.own_index
             ? static_cast<const char*>(arguments.own)
             : static_cast<const char*>(arguments.blocks) + static_cast<uint64_t>(k) * arguments.stride;
}

// The type that a fold keeps until it rounds: for the mean of integers a wider one.
template <class Format, bool kAverage>
using Kept = typename std::conditional_t<kAverage && std::is_integral_v<typename Format::Number>,
                                         WideInteger<typename Format::Number>,
                                         std::enable_if<true, typename Format::Number>>::type;

template <class Format, bool kAverage>
COHORT_ON_DEVICE typename Format::Element Rounded(Kept<Format, kAverage> number, int operands) {
  if constexpr (!kAverage) {
    return Format::Encode(number);
  } else {
    const auto mean = number / static_cast<Kept<Format, kAverage>>(operands);
    return Format::Encode(static_cast<typename Format::Number>(mean));
  }
}

// Elements [i, i + kCount), all aligned to their size together.
template <class Format, class Op, bool kAverage, int kCount>
COHORT_ON_DEVICE void FoldPiece(const FoldArguments& arguments, uint64_t i) {
  using P = Piece<typename Format::Element, kCount>;
  const uint64_t at = i * sizeof(typename Format::Element);
  P piece = *reinterpret_cast<const P*>(OperandOf(arguments, 0) + at);
  using Number = Kept<Format, kAverage>;
  Number numbers[kCount];
  for (int j = 0; j < kCount; ++j) numbers[j] = Format::Decode(piece.elements[j]);
  COHORT_NOT_UNROLLED
  for (int k = 1; k < arguments.operands; ++k) {
    piece = *reinterpret_cast<const P*>(OperandOf(arguments, k) + at);
    for (int j = 0; j < kCount; ++j) {
      numbers[j] = Op::Apply(numbers[j], static_cast<Number>(Format::Decode(piece.elements[j])));
    }
  }
  for (int j = 0; j < kCount; ++j) piece.elements[j] = Rounded<Format, kAverage>(numbers[j], arguments.operands);
  *reinterpret_cast<P*>(static_cast<char*>(arguments.out) + at) = piece;
}

// One element at any address.
template <class Format, class Op, bool kAverage>
COHORT_ON_DEVICE void FoldAnywhere(const FoldArguments& arguments, uint64_t i) {
  using T = typename Format::Element;
  const uint64_t at = i * sizeof(T);
  T element;
  memcpy(&element, OperandOf(arguments, 0) + at, sizeof element);
  Kept<Format, kAverage> number = Format::Decode(element);
  COHORT_NOT_UNROLLED
  for (int k = 1; k < arguments.operands; ++k) {
    memcpy(&element, OperandOf(arguments, k) + at, sizeof element);
    number = Op::Apply(number, static_cast<Kept<Format, kAverage>>(Format::Decode(element)));
  }
  element = Rounded<Format, kAverage>(number, arguments.operands);
  memcpy(static_cast<char*>(arguments.out) + at, &element, sizeof element);
}

template <class Format, class Op, bool kAverage>
COHORT_ON_DEVICE void Fold(const FoldArguments& arguments, uint64_t thread, uint64_t threads) {
  constexpr uint64_t kBytes = sizeof(typename Format::Element);
  constexpr int kPiece = static_cast<int>(kPieceBytes / kBytes);
  const auto out = reinterpret_cast<uintptr_t>(arguments.out);
  const uintptr_t apart = (reinterpret_cast<uintptr_t>(arguments.own) ^ out) |
                          (reinterpret_cast<uintptr_t>(arguments.blocks) ^ out) | arguments.stride;
  const uint64_t count = arguments.count;
  if ((apart | out) % kBytes != 0) {
    COHORT_NOT_UNROLLED
    for (uint64_t i = thread; i < count; i += threads) FoldAnywhere<Format, Op, kAverage>(arguments, i);
    return;
  }
  if (apart % kPieceBytes != 0) {
    COHORT_NOT_UNROLLED
    for (uint64_t i = thread; i < count; i += threads) FoldPiece<Format, Op, kAverage, 1>(arguments, i);
    return;
  }
  const uint64_t before = (kPieceBytes - out % kPieceBytes) % kPieceBytes / kBytes;
  const uint64_t head = before < count ? before : count;
  const uint64_t pieces = (count - head) / kPiece;
  COHORT_NOT_UNROLLED
  for (uint64_t i = thread; i < pieces; i += threads) {
    FoldPiece<Format, Op, kAverage, kPiece>(arguments, head + i * kPiece);
  }
  const uint64_t rest = count - pieces * kPiece;  // the head's and the tail's
  COHORT_NOT_UNROLLED
  for (uint64_t i = thread; i < rest; i += threads) {
    FoldPiece<Format, Op, kAverage, 1>(arguments, i < head ? i : i + pieces * kPiece);
  }
}

template <class Format>
COHORT_ON_DEVICE void Prepare(const ConvertArguments& arguments, uint64_t thread, uint64_t threads) {
  using T = typename Format::Element;
  using Number = typename Format::Number;
  COHORT_NOT_UNROLLED
  for (uint64_t i = thread; i < arguments.count; i += threads) {
    T element;
    memcpy(&element, static_cast<const char*>(arguments.from) + i * sizeof(T), sizeof element);
    Number number = Format::Decode(element);
    number = Product::Apply(number, static_cast<Number>(arguments.factor));
    memcpy(static_cast<char*>(arguments.to) + i * sizeof(Number), &number, sizeof number);
  }
}

template <class Format>
COHORT_ON_DEVICE void Finish(const ConvertArguments& arguments, uint64_t thread, uint64_t threads) {
  using T = typename Format::Element;
  using Number = typename Format::Number;
  COHORT_NOT_UNROLLED
  for (uint64_t i = thread; i < arguments.count; i += threads) {
    Number number;
    memcpy(&number, static_cast<const char*>(arguments.from) + i * sizeof(Number), sizeof number);
    const T element = Format::Encode(number);
    memcpy(static_cast<char*>(arguments.to) + i * sizeof(T), &element, sizeof element);
  }
}

}  // namespace cohort::comm::cuda
