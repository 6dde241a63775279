// The memory behind tensors that come and go: a tensor object stays, with its views and with what autograd saved of
// it, while its storage has memory only part of the time.
#pragma once

#include <cstddef>
#include <deque>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Keeps a few released blocks of host memory, because fresh memory costs a page fault for every 4 KiB. Those of devices
// go back to their allocator at once, which keeps them for everybody.
class StoragePool {
 public:
  // At most so many times the bytes of the largest block that was released are kept.
  explicit StoragePool(size_t kept_of_largest = 2) : kept_of_largest_(kept_of_largest) {}
  StoragePool(const StoragePool&) = delete;
  StoragePool& operator=(const StoragePool&) = delete;

  // Gives the storage of `tensor`, a whole contiguous tensor, memory for its elements; the contents are undefined.
  // Nothing when it has some.
  void Attach(const at::Tensor& tensor);
  // Takes it away again.
  void Detach(const at::Tensor& tensor);
  static bool HasMemory(const at::Tensor& tensor);

 private:
  struct Block {
    size_t bytes = 0;
    c10::DataPtr memory;
  };
  // A released block of that size, or null.
  c10::DataPtr Take(size_t bytes);
  void Keep(Block block);

  size_t kept_of_largest_;
  size_t largest_ = 0;
  size_t kept_ = 0;         // bytes
  std::deque<Block> free_;  // the one that was released last is the last
};

}  // namespace cohort::trainer
