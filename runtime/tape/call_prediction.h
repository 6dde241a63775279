// Predicts the next call of a tape from those before it. The writer and the reader of a tape predict alike, so an entry
// says only where the prediction is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cohort::runtime {

class CallPrediction {
 public:
  // The shape that came behind that of the latest call the last time; 0 where none did.
  uint32_t shape() const { return latest_ < shapes_.size() ? shapes_[latest_].next : 0; }
  // The tag of a call of this shape: the latest one's, and as much more as that was above the one before it.
  uint64_t TagOf(uint32_t shape) const {
    return shape < shapes_.size() ? shapes_[shape].tag + shapes_[shape].change : 0;
  }
  // A call has come. Shapes are numbered from 0.
  void Add(uint32_t shape, uint64_t tag) {
    if (shape >= shapes_.size()) shapes_.resize(size_t{shape} + 1);
    if (latest_ < shapes_.size()) shapes_[latest_].next = shape;
    Shape& known = shapes_[shape];
    known.change = tag - known.tag;
    known.tag = tag;
    latest_ = shape;
  }
  void Clear() { *this = CallPrediction(); }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Shape {
    uint32_t next = 0;
    uint64_t tag = 0;
    uint64_t change = 0;  // of the tag, from the call before
  };
  std::vector<Shape> shapes_;
  uint32_t latest_ = kNone;
};

}  // namespace cohort::runtime
