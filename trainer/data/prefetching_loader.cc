#include "cohort/trainer/data/prefetching_loader.h"

#include "torch/torch.h"

namespace cohort::trainer {

at::Tensor PinMemory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && torch::cuda::is_available() ? tensor.pin_memory() : tensor;
}

}  // namespace cohort::trainer
