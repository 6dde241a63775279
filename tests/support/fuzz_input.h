// Takes a fuzzer's bytes apart into the small decisions of a test: which event, which of a few numbers, which text.
// Missing bytes at the end count as 0, so that every input means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace cohort {

// Ends the run as a finding.
inline void FuzzCheck(bool promise) {
  if (!promise) std::abort();
}

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // 0 to bound - 1.
  uint32_t Below(uint32_t bound) { return Byte() % bound; }
  // Most often below 240; else one that is at the edge of something, or any.
  uint64_t Number() {
    const uint8_t first = Byte();
    if (first < 240) return first;
    static constexpr uint64_t kEdges[] = {std::numeric_limits<int32_t>::max(),
                                          uint64_t{1} << 31,
                                          std::numeric_limits<uint32_t>::max(),
                                          std::numeric_limits<int64_t>::max(),
                                          uint64_t{1} << 63,
                                          std::numeric_limits<uint64_t>::max(),
                                          1000,
                                          65536};
    if (first < 248) return kEdges[first - 240];
    uint64_t number = 0;
    for (int i = 0; i < first - 247; ++i) number = number << 8 | Byte();
    return number;
  }
  uint32_t Number32() { return static_cast<uint32_t>(Number()); }
  int32_t Signed32() { return static_cast<int32_t>(Number()); }
  bool Bool() { return Byte() % 2 == 1; }
  // Its length comes first, so that a text can grow and shrink without moving what follows.
  std::string Text() {
    const size_t length = std::min<size_t>(Byte(), left_);
    const std::string text(reinterpret_cast<const char*>(data_), length);
    data_ += length;
    left_ -= length;
    return text;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace cohort
