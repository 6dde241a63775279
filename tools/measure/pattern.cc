#include "tools/measure/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace cohort::measure {
namespace {

using Kind = ElementType::Kind;

uint32_t Mix(uint32_t seed, int rank, int64_t index) {
  const auto wide = static_cast<uint64_t>(index);
  uint32_t hash = static_cast<uint32_t>(wide ^ (wide >> 32)) * 0x9e3779b1u;
  hash ^= (static_cast<uint32_t>(rank) + 1) * 0x85ebca6bu ^ seed * 0xc2b2ae35u;
  hash ^= hash >> 15;
  hash *= 0x2c1b3c6du;
  return hash ^ (hash >> 12);
}

// Operands of reductions: 0 to 7, less where sums of integers would overflow.
uint32_t LargestOperand(const Pattern& pattern) {
  if (pattern.type.kind == Kind::kFloat || pattern.type.bytes > 1) return 7;
  return pattern.ranks * 7 <= 127 ? 7 : pattern.ranks * 3 <= 127 ? 3 : 1;
}

class Operands {
 public:
  explicit Operands(const Pattern& pattern)
      : seed_(pattern.seed),
        mask_(LargestOperand(pattern)),
        product_(pattern.fold == Fold::kProduct),
        ranks_(static_cast<uint32_t>(std::max(pattern.ranks, 4))) {}
  uint32_t At(int rank, int64_t index) const {
    // Products: one rank at the most has a 2, all others 1.
    if (product_) return Mix(seed_, 0, index) % ranks_ == static_cast<uint32_t>(rank) ? 2 : 1;
    return Mix(seed_, rank, index) & mask_;
  }

 private:
  uint32_t seed_;
  uint32_t mask_;
  bool product_;
  uint32_t ranks_;
};

// A small whole number as an element.
uint64_t Encode(const ElementType& type, uint32_t value) {
  if (type.kind != Kind::kFloat || value == 0) return value;
  int exponent = 0;
  while ((value >> (exponent + 1)) != 0) ++exponent;
  const uint64_t bias = (uint64_t{1} << (type.exponent_bits - 1)) - 1;
  const uint64_t fraction = static_cast<uint64_t>(value) - (uint64_t{1} << exponent);
  const uint64_t mantissa = exponent <= type.mantissa_bits ? fraction << (type.mantissa_bits - exponent)
                                                           : fraction >> (exponent - type.mantissa_bits);
  return ((bias + static_cast<uint64_t>(exponent)) << type.mantissa_bits) | mantissa;
}

double DecodeFloat(const ElementType& type, uint64_t bits) {
  const uint64_t mantissa = bits & ((uint64_t{1} << type.mantissa_bits) - 1);
  const uint64_t top = (uint64_t{1} << type.exponent_bits) - 1;
  const uint64_t exponent = (bits >> type.mantissa_bits) & top;
  const bool negative = ((bits >> (type.mantissa_bits + type.exponent_bits)) & 1) != 0;
  const int bias = static_cast<int>(top >> 1);
  const bool all_ones = mantissa == (uint64_t{1} << type.mantissa_bits) - 1;
  if (exponent == top && (!type.no_infinity || all_ones)) return std::nan("");
  const double fraction = std::ldexp(static_cast<double>(mantissa), -type.mantissa_bits);
  const double value =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
  return negative ? -value : value;
}

double Decode(const ElementType& type, const char* at) {
  if (type.kind == Kind::kFloat && type.bytes == 4) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(type.bytes));
  if (type.kind == Kind::kFloat) return DecodeFloat(type, bits);
  const int unused = 64 - 8 * type.bytes;
  if (type.kind == Kind::kSigned) return static_cast<double>(static_cast<int64_t>(bits << unused) >> unused);
  return static_cast<double>(bits);
}

double Expected(const Pattern& pattern, const Operands& operands, int64_t index) {
  const auto fold_integers = [&](auto combine) {
    uint64_t result = operands.At(0, index);
    for (int rank = 1; rank < pattern.ranks; ++rank) result = combine(result, uint64_t{operands.At(rank, index)});
    return static_cast<double>(result);
  };
  const auto sum = [](uint64_t a, uint64_t b) { return a + b; };
  switch (pattern.fold) {
    case Fold::kSum:
      return fold_integers(sum);
    case Fold::kAvg: {
      const double mean = fold_integers(sum) / pattern.ranks;
      return pattern.type.kind == Kind::kFloat ? mean : std::floor(mean);
    }
    case Fold::kProduct:
      return fold_integers([](uint64_t a, uint64_t b) { return a * b; });
    case Fold::kMin:
      return fold_integers([](uint64_t a, uint64_t b) { return std::min(a, b); });
    case Fold::kMax:
      return fold_integers([](uint64_t a, uint64_t b) { return std::max(a, b); });
    case Fold::kBitAnd:
      return fold_integers([](uint64_t a, uint64_t b) { return a & b; });
    case Fold::kBitOr:
      return fold_integers([](uint64_t a, uint64_t b) { return a | b; });
    case Fold::kBitXor:
      return fold_integers([](uint64_t a, uint64_t b) { return a ^ b; });
  }
  return 0;
}

// The permitted error of a result: none for a whole number that the type holds exactly.
double Tolerance(const Pattern& pattern, double expected) {
  if (pattern.type.kind != Kind::kFloat) return 0;
  const bool whole = expected == std::floor(expected);
  if (whole && expected <= std::ldexp(1.0, std::min(pattern.type.mantissa_bits + 1, 50))) return 0;
  return expected * std::ldexp(1.0, -pattern.type.mantissa_bits) * pattern.ranks;
}

// Elements of operations that move data are arbitrary bytes.
uint64_t Moved(const Pattern& pattern, int rank, int64_t index) {
  return Mix(pattern.seed, rank, index) * 0x9e3779b97f4a7c15u;
}

template <int kBytes>
void FillMoved(const Pattern& pattern, int64_t elements, char* at) {
  for (int64_t i = 0; i < elements; ++i, at += kBytes) {
    const uint64_t value = Moved(pattern, pattern.rank, i);
    std::memcpy(at, reinterpret_cast<const char*>(&value) + (8 - kBytes), kBytes);
  }
}

// Elements of the block at `at` that differ from those of `rank` from `first` on.
template <int kBytes>
int64_t CountMoved(const Pattern& pattern, int rank, int64_t first, const char* at) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < pattern.count; ++i, at += kBytes) {
    const uint64_t value = Moved(pattern, rank, first + i);
    wrong += std::memcmp(at, reinterpret_cast<const char*>(&value) + (8 - kBytes), kBytes) != 0 ? 1 : 0;
  }
  return wrong;
}

template <int kBytes>
void FillOperands(const Pattern& pattern, int64_t elements, char* at) {
  std::array<uint64_t, 8> codes;
  for (uint32_t value = 0; value < codes.size(); ++value) codes[value] = Encode(pattern.type, value);
  const Operands operands(pattern);
  for (int64_t i = 0; i < elements; ++i, at += kBytes) std::memcpy(at, &codes[operands.At(pattern.rank, i)], kBytes);
}

// Calls `work` with the element size as a constant.
template <typename Work>
auto WithSize(int bytes, Work work) {
  switch (bytes) {
    case 1:
      return work(std::integral_constant<int, 1>());
    case 2:
      return work(std::integral_constant<int, 2>());
    case 4:
      return work(std::integral_constant<int, 4>());
    default:
      return work(std::integral_constant<int, 8>());
  }
}

int64_t CountWrongMoves(const Pattern& pattern, const char* out) {
  const int64_t own = pattern.count * pattern.rank;
  const int blocks = BlocksOf(pattern.operation, pattern.rank == pattern.root, pattern.ranks).out;
  const int64_t bytes = pattern.count * pattern.type.bytes;
  int64_t wrong = 0;
  for (int block = 0; block < blocks; ++block) {
    int source = block;
    if (pattern.operation == Operation::kSendRecv) source = (pattern.rank + pattern.ranks - 1) % pattern.ranks;
    int64_t first = 0;
    if (IsRooted(pattern.operation) && pattern.operation != Operation::kGather) source = pattern.root;
    if (pattern.operation == Operation::kScatter || pattern.operation == Operation::kAllToAll) first = own;
    wrong += WithSize(pattern.type.bytes,
                      [&](auto size) { return CountMoved<size>(pattern, source, first, out + block * bytes); });
  }
  return wrong;
}

}  // namespace

const std::vector<ElementType>& ElementTypes() {
  static const std::vector<ElementType> types = {
      {.name = "int8", .bytes = 1, .kind = Kind::kSigned},
      {.name = "uint8", .bytes = 1, .kind = Kind::kUnsigned},
      {.name = "int16", .bytes = 2, .kind = Kind::kSigned},
      {.name = "uint16", .bytes = 2, .kind = Kind::kUnsigned},
      {.name = "int32", .bytes = 4, .kind = Kind::kSigned},
      {.name = "uint32", .bytes = 4, .kind = Kind::kUnsigned},
      {.name = "int64", .bytes = 8, .kind = Kind::kSigned},
      {.name = "uint64", .bytes = 8, .kind = Kind::kUnsigned},
      {.name = "float16", .bytes = 2, .exponent_bits = 5, .mantissa_bits = 10},
      {.name = "bfloat16", .bytes = 2, .exponent_bits = 8, .mantissa_bits = 7},
      {.name = "float32", .bytes = 4, .exponent_bits = 8, .mantissa_bits = 23},
      {.name = "float64", .bytes = 8, .exponent_bits = 11, .mantissa_bits = 52},
      {.name = "float8_e4m3", .bytes = 1, .exponent_bits = 4, .mantissa_bits = 3, .no_infinity = true},
      {.name = "float8_e5m2", .bytes = 1, .exponent_bits = 5, .mantissa_bits = 2},
  };
  return types;
}

const ElementType* FindElementType(std::string_view name) {
  for (const ElementType& type : ElementTypes()) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

void FillInput(const Pattern& pattern, void* in) {
  const int blocks = BlocksOf(pattern.operation, pattern.rank == pattern.root, pattern.ranks).in;
  const int64_t elements = pattern.count * blocks;
  WithSize(pattern.type.bytes, [&](auto size) {
    if (Reduces(pattern.operation)) {
      FillOperands<size>(pattern, elements, static_cast<char*>(in));
    } else {
      FillMoved<size>(pattern, elements, static_cast<char*>(in));
    }
  });
}

void Poison(void* out, size_t bytes) {
  if (bytes > 0) std::memset(out, 0xa5, bytes);
}

int64_t CountWrong(const Pattern& pattern, const void* out) {
  const char* at = static_cast<const char*>(out);
  if (!Reduces(pattern.operation)) return CountWrongMoves(pattern, at);
  if (BlocksOf(pattern.operation, pattern.rank == pattern.root, pattern.ranks).out == 0) return 0;
  const int64_t first = pattern.operation == Operation::kReduceScatter ? pattern.count * pattern.rank : 0;
  const Operands operands(pattern);
  int64_t wrong = 0;
  for (int64_t i = 0; i < pattern.count; ++i, at += pattern.type.bytes) {
    const double expected = Expected(pattern, operands, first + i);
    const double difference = std::abs(Decode(pattern.type, at) - expected);
    wrong += difference <= Tolerance(pattern, expected) ? 0 : 1;  // not a number is wrong as well
  }
  return wrong;
}

}  // namespace cohort::measure
