#include "cohort/trainer/transfer/storage_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "c10/core/DeviceGuard.h"
#include "torch/torch.h"

namespace cohort::trainer {

bool StoragePool::HasMemory(const at::Tensor& tensor) { return tensor.storage().nbytes() > 0; }

void StoragePool::Attach(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes == 0 || HasMemory(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr memory;
  if (tensor.device().is_cpu()) memory = Take(bytes);
  if (memory == nullptr) {
    const c10::DeviceGuard guard(tensor.device());  // allocators of devices take the current one
    memory = storage.allocator()->allocate(bytes);
  }
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
}

void StoragePool::Detach(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes == 0 || !HasMemory(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr memory = storage.set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
  if (tensor.device().is_cpu()) Keep({bytes, std::move(memory)});
}

c10::DataPtr StoragePool::Take(size_t bytes) {
  const auto found =
      std::find_if(free_.rbegin(), free_.rend(), [bytes](const Block& block) { return block.bytes == bytes; });
  if (found == free_.rend()) return {};
  c10::DataPtr memory = std::move(found->memory);
  free_.erase(std::next(found).base());
  kept_ -= bytes;
  return memory;
}

void StoragePool::Keep(Block block) {
  largest_ = std::max(largest_, block.bytes);
  kept_ += block.bytes;
  free_.push_back(std::move(block));
  while (kept_ > kept_of_largest_ * largest_) {
    kept_ -= free_.front().bytes;
    free_.pop_front();
  }
}

}  // namespace cohort::trainer
