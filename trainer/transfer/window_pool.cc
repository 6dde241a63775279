#include "cohort/trainer/transfer/window_pool.h"

#include <utility>
#include <vector>

#include "cohort/comm/window.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "torch/torch.h"

namespace cohort::trainer {

struct WindowPool::Windows {
  std::vector<comm::Window> all;
  runtime::Mutex mutex;
  std::vector<size_t> free COHORT_GUARDED_BY(mutex);
};

WindowPool::WindowPool(comm::Communicator& group, size_t bytes, int count) : windows_(std::make_shared<Windows>()) {
  for (int i = 0; i < count && bytes > 0; ++i) {
    auto window = WindowIfThereIsRoom(group, bytes, "making the memory for gradients");
    if (!window.has_value()) return;
    windows_->all.push_back(*std::move(window));
    const runtime::MutexLock lock(windows_->mutex);
    windows_->free.push_back(windows_->all.size() - 1);
  }
}

at::Tensor WindowPool::Take(int64_t elements, const at::TensorOptions& options) const {
  const size_t bytes = static_cast<size_t>(elements) * options.dtype().itemsize();
  if (!options.device().is_cpu() || windows_->all.empty() || bytes > windows_->all.front().size()) {
    return at::empty({elements}, options);
  }
  size_t index = 0;
  {
    const runtime::MutexLock lock(windows_->mutex);
    if (windows_->free.empty()) return at::empty({elements}, options);
    index = windows_->free.back();
    windows_->free.pop_back();
  }
  const auto give_back = [windows = windows_, index](void*) {
    const runtime::MutexLock lock(windows->mutex);
    windows->free.push_back(index);
  };
  return at::from_blob(windows_->all[index].data(), {elements}, give_back, options);
}

}  // namespace cohort::trainer
