// The memory behind tensors that come and go. A tensor object stays, with its views and the references that autograd
// saved. Its storage has memory only part of the time.
#pragma once

#include <cstddef>
#include <deque>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Keeps a few released blocks of host memory, because fresh memory costs a page fault for every 4 KiB. Blocks of
// devices go back to their allocator at once, which keeps them for everybody.
class StoragePool {
 public:
  // It keeps at most `kept_of_largest` times the bytes of the largest block that was released.
  explicit StoragePool(size_t kept_of_largest = 2) : kept_of_largest_(kept_of_largest) {}
  StoragePool(const StoragePool&) = delete;
  StoragePool& operator=(const StoragePool&) = delete;

  // Gives memory to the storage of `tensor`, a whole contiguous tensor. The contents are undefined. Does nothing when
  // it has some.
  void Attach(const at::Tensor& tensor);
  // Takes the memory away again.
  void Detach(const at::Tensor& tensor);
  static bool HasMemory(const at::Tensor& tensor);

 private:
  struct Block {
    size_t bytes = 0;
    c10::DataPtr memory;
  };
  // Returns a released block of that size, or null.
  c10::DataPtr Take(size_t bytes);
  void Keep(Block block);

  size_t kept_of_largest_;
  size_t largest_ = 0;
  size_t kept_ = 0;         // bytes
  std::deque<Block> free_;  // the block released last is at the back
};

}  // namespace cohort::trainer
