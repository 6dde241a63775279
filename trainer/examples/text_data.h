// A text as character codes, and batches of its passages.
#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"

namespace cohort::examples {

// Passages and what follows each of their characters, both [count, length] int64.
struct TextBatch {
  at::Tensor inputs;
  at::Tensor targets;
};

class Text {
 public:
  // Throws c10::Error when the file can't be read or is too short.
  explicit Text(const std::string& path);

  int64_t vocabulary() const { return static_cast<int64_t>(characters_.size()); }
  // Equal for equal texts.
  std::string Fingerprint() const;
  std::string Decode(const at::Tensor& codes) const;
  // Codes of the characters of `text` that the file has.
  at::Tensor Encode(const std::string& text) const;

  // Passages of `length` characters at places drawn by `seed` and `step` from the first nine tenths, or from the last
  // one: those numbered rank, rank + ranks, ... of `count`. All ranks together have the same `count` passages, however
  // many ranks there are.
  TextBatch Batch(bool train, uint64_t seed, int64_t step, int64_t count, int64_t length, int rank, int ranks) const;

 private:
  std::string characters_;  // by code, sorted
  at::Tensor train_, validation_;
};

// The path of shakespeare.txt: see FindExampleData.
std::string FindShakespeare();

}  // namespace cohort::examples
