// A 64-bit hash of memory, about as fast as it is read. Not for secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cohort::runtime {

// The hash of pieces one after another: it does not matter how memory is cut into pieces.
class MemoryHash {
 public:
  MemoryHash();
  void Add(const void* data, size_t bytes);
  // The hash of all that was added. The object may not be used afterwards.
  uint64_t Finish();

 private:
  static constexpr size_t kLanes = 4;
  static constexpr size_t kStep = 16 * kLanes;
  void AddSteps(const std::byte* data, size_t steps);

  std::array<uint64_t, kLanes> lanes_;
  uint64_t total_ = 0;
  size_t waiting_ = 0;                   // bytes of `rest_`, less than a step
  std::array<std::byte, kStep> rest_{};  // what is no whole step yet
};

uint64_t HashMemory(const void* data, size_t bytes);

}  // namespace cohort::runtime
