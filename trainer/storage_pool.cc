#include "trainer/storage_pool.h"

#include <utility>

#include "c10/core/DeviceGuard.h"
#include "torch/torch.h"

namespace cohort::trainer {

bool StoragePool::HasMemory(const at::Tensor& tensor) { return tensor.storage().nbytes() > 0; }

void StoragePool::Attach(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes == 0 || HasMemory(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  std::vector<c10::DataPtr>& blocks = free_[{tensor.is_cuda() ? tensor.get_device() : -1, bytes}];
  if (blocks.empty()) {
    const c10::DeviceGuard guard(tensor.device());  // allocators of devices take the current one
    storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  } else {
    storage.set_data_ptr_noswap(std::move(blocks.back()));
    blocks.pop_back();
  }
  storage.set_nbytes(bytes);
}

void StoragePool::Detach(const at::Tensor& tensor) {
  const size_t bytes = tensor.nbytes();
  if (bytes == 0 || !HasMemory(tensor)) return;
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr block = storage.set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
  std::vector<c10::DataPtr>& blocks = free_[{tensor.is_cuda() ? tensor.get_device() : -1, bytes}];
  if (blocks.size() < kept_per_size_) blocks.push_back(std::move(block));
}

}  // namespace cohort::trainer
