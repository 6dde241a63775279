#include "trainer/grad_norm.h"

#include <algorithm>
#include <cmath>

#include "torch/torch.h"
#include "trainer/collectives.h"
#include "trainer/error.h"

namespace cohort::trainer {

at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups) {
  TORCH_CHECK(norm_type > 0, "clip_grad_norm_: norm_type must be positive, got ", norm_type);
  const at::NoGradGuard no_grad;
  const bool infinite = std::isinf(norm_type);
  double total = 0;
  for (const at::Tensor& part : parts) {
    if (part.numel() == 0) continue;
    const double norm = part.detach().to(at::kFloat).norm(norm_type).item<double>();
    if (std::isnan(norm)) {
      total = norm;
    } else {
      total = infinite ? std::max(total, norm) : total + std::pow(norm, norm_type);
    }
  }
  for (comm::Communicator* group : groups) {
    const comm::Buffer buffer(&total, 1);
    ThrowUnlessOk(AllReduce(*group, buffer, buffer, infinite ? comm::ReduceOp::kMax : comm::ReduceOp::kSum).Wait(),
                  "adding up the norm of gradients");
  }
  return at::scalar_tensor(infinite ? total : std::pow(total, 1.0 / norm_type), at::kFloat);
}

void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  if (factor >= 1) return;
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
}

}  // namespace cohort::trainer
