// CountedMemory: counts the bytes of torch's allocations on the CPU, exactly, in all threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"
#include "torch/version.h"

namespace cohort::trainer {

// While it lives, torch's CPU tensors are allocated through it. Tensors made meanwhile may outlive it. Only one at a
// time.
class CountedMemory {
 public:
  CountedMemory() : before_(c10::GetCPUAllocator()) {
    Counts() = {};
    Inner() = before_;
    c10::SetCPUAllocator(&Counting(), /*priority=*/100);
  }
  ~CountedMemory() { c10::SetCPUAllocator(before_, /*priority=*/100); }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  // Bytes of the tensors made since this was made that are still there, and the most that there were.
  int64_t bytes() const { return Counts().now; }
  int64_t peak() const { return Counts().peak; }

 private:
  struct Numbers {
    std::atomic<int64_t> now{0}, peak{0};
    Numbers& operator=(const Numbers&) {
      now = 0;
      peak = 0;
      return *this;
    }
  };
  struct Block {
    c10::DataPtr memory;
    int64_t bytes;
  };
  class Allocator final : public c10::Allocator {
   public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    c10::DataPtr allocate(size_t bytes) override { return Allocate(bytes); }
    void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
#else
    c10::DataPtr allocate(size_t bytes) const override { return Allocate(bytes); }
#endif
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

   private:
    static c10::DataPtr Allocate(size_t bytes) {
      auto* block = new Block{Inner()->allocate(bytes), static_cast<int64_t>(bytes)};
      const int64_t now = Counts().now += block->bytes;
      int64_t peak = Counts().peak;
      while (now > peak && !Counts().peak.compare_exchange_weak(peak, now)) {
      }
      return {block->memory.get(), block, &Free, c10::Device(c10::kCPU)};
    }
  };
  static void Free(void* context) {
    auto* block = static_cast<Block*>(context);
    Counts().now -= block->bytes;
    delete block;
  }
  static Numbers& Counts() {
    static Numbers counts;
    return counts;
  }
  static c10::Allocator*& Inner() {
    static c10::Allocator* inner = nullptr;
    return inner;
  }
  static Allocator& Counting() {
    static Allocator allocator;
    return allocator;
  }

  c10::Allocator* before_;
};

}  // namespace cohort::trainer
