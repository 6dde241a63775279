#include "cohort/trainer/transfer/window_tensor.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "c10/core/CPUAllocator.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {

std::optional<comm::Window> WindowIfThereIsRoom(comm::Communicator& group, size_t bytes, const std::string& what) {
  comm::CallOptions options;
  options.timeout = default_timeout();
  auto window = group.AllocateWindow(bytes, options);
  if (window.status().code() == absl::StatusCode::kResourceExhausted) return std::nullopt;
  ThrowUnlessAllCame(window.status(), what);
  return *std::move(window);
}

at::Tensor ZerosInWindow(comm::Communicator& group, int64_t elements, const at::TensorOptions& options,
                         const std::string& what) {
  const at::TensorOptions plain = options.requires_grad(false);
  if (!plain.device().is_cpu()) return at::zeros({elements}, plain);
  auto window = WindowIfThereIsRoom(group, static_cast<size_t>(elements) * plain.dtype().itemsize(), what);
  if (!window.has_value() || elements == 0) return at::zeros({elements}, plain);
  auto owner = std::make_shared<comm::Window>(*std::move(window));
  return at::from_blob(owner->data(), {elements}, [owner](void*) mutable { owner.reset(); }, plain);
}

bool EnterWindow(comm::Communicator& group, const at::Tensor& whole, const std::string& what) {
  if (!whole.defined() || !whole.device().is_cpu() || whole.nbytes() == 0) return false;
  auto window = WindowIfThereIsRoom(group, whole.nbytes(), what);
  if (!window.has_value()) return false;
  auto owner = std::make_unique<comm::Window>(*std::move(window));
  std::memcpy(owner->data(), whole.data_ptr(), whole.nbytes());
  void* const data = owner->data();
  whole.storage().set_data_ptr_noswap(c10::DataPtr(
      data, owner.release(), [](void* held) { delete static_cast<comm::Window*>(held); }, c10::Device(at::kCPU)));
  return true;
}

void LeaveWindow(const at::Tensor& whole) {
  if (whole.defined() && whole.storage().use_count() > 1) LeaveWindowForGood(whole);
}

void LeaveWindowForGood(const at::Tensor& whole) {
  if (!whole.defined() || !whole.device().is_cpu() || whole.nbytes() == 0) return;
  const c10::Storage& storage = whole.storage();
  c10::DataPtr memory = c10::GetCPUAllocator()->allocate(whole.nbytes());
  std::memcpy(memory.get(), whole.data_ptr(), whole.nbytes());
  storage.set_data_ptr_noswap(std::move(memory));  // one for all views
}

}  // namespace cohort::trainer
