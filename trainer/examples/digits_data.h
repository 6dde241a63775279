// The handwritten digits of data/digits.csv as tensors, split into a training and a test set.
#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::examples {

struct Digits {
  at::Tensor images;  // [count, 1, 8, 8] float32, mean 0 and deviation 1
  at::Tensor labels;  // [count] int64 in 0..9
  int64_t count() const { return labels.size(0); }
};

struct DigitsSplit {
  Digits train;
  Digits test;
};

// Reads the file and splits it: a fixed permutation (chosen by `seed`), the first fifth of which is the test set. Every
// rank gets the same split. Throws c10::Error naming file, line and what is wrong there.
DigitsSplit LoadDigits(const std::string& path, uint64_t seed);

// The path of digits.csv: see FindExampleData.
std::string FindDigits();

}  // namespace cohort::examples
