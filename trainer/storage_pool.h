// The memory behind tensors that come and go: a tensor object stays, with its views and with what autograd saved of
// it, while its storage has memory only part of the time.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"

namespace cohort::trainer {

// Keeps a few released blocks of each size, because fresh memory costs a page fault for every 4 KiB.
class StoragePool {
 public:
  explicit StoragePool(size_t kept_per_size = 2) : kept_per_size_(kept_per_size) {}
  StoragePool(const StoragePool&) = delete;
  StoragePool& operator=(const StoragePool&) = delete;

  // Gives the storage of `tensor`, a whole contiguous tensor, memory for its elements; the contents are undefined.
  // Nothing when it has some.
  void Attach(const at::Tensor& tensor);
  // Takes it away again.
  void Detach(const at::Tensor& tensor);
  static bool HasMemory(const at::Tensor& tensor);

 private:
  size_t kept_per_size_;
  std::map<std::pair<int, size_t>, std::vector<c10::DataPtr>> free_;  // by CUDA ordinal (-1: CPU) and bytes
};

}  // namespace cohort::trainer
