// CountedMemory: counts the bytes of torch's allocations on the CPU, exactly, in all threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

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
    int64_t bytes = 0;
  };
  class Allocator final : public c10::Allocator {
   public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    c10::DataPtr allocate(size_t bytes) override { return Allocate(bytes); }
    void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
#else
    c10::DataPtr allocate(size_t bytes) const override { return Allocate(bytes); }
#endif
    c10::DeleterFnPtr raw_deleter() const override { return &Free; }

   private:
    // The context is the memory, as raw_allocate asks, which oneDNN's kernels call.
    static c10::DataPtr Allocate(size_t bytes) {
      c10::DataPtr memory = Inner()->allocate(bytes);
      void* const data = memory.get();
      if (data == nullptr) return memory;
      const int64_t now = Counts().now += static_cast<int64_t>(bytes);
      int64_t peak = Counts().peak;
      while (now > peak && !Counts().peak.compare_exchange_weak(peak, now)) {
      }
      const std::lock_guard lock(BlocksLock());
      Block& block = Blocks()[data];
      if (block.memory.get() != nullptr) Forget(block);  // the allocator below has freed it: oneDNN kept it for longer
      block = {std::move(memory), static_cast<int64_t>(bytes)};
      return {data, data, &Free, c10::Device(c10::kCPU)};
    }
  };
  static void Forget(Block& block) {
    Counts().now -= block.bytes;
    (void)block.memory.release_context();
  }
  static void Free(void* data) {
    Block block;
    {
      const std::lock_guard lock(BlocksLock());
      const auto found = Blocks().find(data);
      if (found == Blocks().end()) return Inner()->raw_deallocate(data);  // made before
      block = std::move(found->second);
      Blocks().erase(found);
    }
    Counts().now -= block.bytes;
  }
  // Both for ever: tensors may be static.
  static std::mutex& BlocksLock() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::unordered_map<void*, Block>& Blocks() {
    static auto* blocks = new std::unordered_map<void*, Block>;
    return *blocks;
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
