// WindowPool: a few windows for tensors that come and go, such as flat gradients on their way into a reduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

class WindowPool {
 public:
  // `count` windows of `bytes` bytes of `group`, or none where the node segment has no room for them on some rank; the
  // group and the runtime must outlive this and the tensors of Take. Collective over `group`; blocks; equal arguments
  // on all ranks. Throws DistributedError.
  WindowPool(comm::Communicator& group, size_t bytes, int count);

  // A tensor of `elements` elements, with undefined contents: in a window where one is free and large enough, else in
  // ordinary memory. The window is free again when the last reference to the tensor's storage goes. Local; any thread.
  at::Tensor Take(int64_t elements, const at::TensorOptions& options) const;

 private:
  struct Windows;
  std::shared_ptr<Windows> windows_;
};

}  // namespace cohort::trainer
