// Data to measure with: inputs that differ from call to call, and the check of every element of a result against them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/measure/operation.h"

namespace cohort::measure {

// How an element type lies in memory. Floating point: IEEE-like with the given bits of exponent and mantissa;
// `no_infinity` is the 8-bit type that spends its highest exponent on numbers.
struct ElementType {
  std::string_view name;
  int bytes = 4;
  enum class Kind { kSigned, kUnsigned, kFloat } kind = Kind::kFloat;
  int exponent_bits = 8;
  int mantissa_bits = 23;
  bool no_infinity = false;
};
// "int8" ... "float64", "bfloat16", "float8_e4m3", "float8_e5m2".
const std::vector<ElementType>& ElementTypes();
// Null where there is none of that name.
const ElementType* FindElementType(std::string_view name);

enum class Fold { kSum, kProduct, kMin, kMax, kAvg, kBitAnd, kBitOr, kBitXor };

struct Pattern {
  Operation operation = Operation::kAllReduce;
  Fold fold = Fold::kSum;
  ElementType type = {};
  int ranks = 1;
  int rank = 0;
  int root = 0;
  int64_t count = 0;  // elements of a block
  uint32_t seed = 0;  // another seed, other data
};

// Writes this rank's whole input (BlocksOf blocks). Reductions get small whole numbers, so that their results are exact
// in every type that can hold them.
void FillInput(const Pattern& pattern, void* in);
// Overwrites an output, so that what a call leaves out shows.
void Poison(void* out, size_t bytes);
// Elements of this rank's output that are wrong. Floating-point results that need rounding may be off by one unit in
// the last place for each rank.
int64_t CountWrong(const Pattern& pattern, const void* out);

}  // namespace cohort::measure
