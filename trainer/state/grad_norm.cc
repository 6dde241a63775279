#include "cohort/trainer/state/grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Norms of the parts, in their order on each device: one wait for a device, whatever their number.
std::vector<double> NormsOf(const std::vector<at::Tensor>& parts, double norm_type) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& part : parts) {
    if (part.numel() == 0) continue;
    const at::Tensor values = part.scalar_type() == at::kDouble ? part.detach() : part.detach().to(at::kFloat);
    by_device[{part.device().type(), part.device().index()}].push_back(values.norm(norm_type).to(at::kDouble));
  }
  std::vector<double> norms;
  for (const auto& [device, on_device] : by_device) {
    const at::Tensor together = at::stack(on_device).to(at::kCPU);
    norms.insert(norms.end(), together.data_ptr<double>(), together.data_ptr<double>() + together.numel());
  }
  return norms;
}

}  // namespace

at::Tensor ShardedNorm(const std::vector<at::Tensor>& parts, double norm_type,
                       const std::vector<comm::Communicator*>& groups) {
  TORCH_CHECK(norm_type > 0, "clip_grad_norm_: norm_type must be positive, got ", norm_type);
  const at::NoGradGuard no_grad;
  const bool infinite = std::isinf(norm_type);
  std::array<double, 2> summed = {0, 0};  // and how many parts are float64
  double& total = summed[0];
  for (const at::Tensor& part : parts) summed[1] += part.scalar_type() == at::kDouble ? 1 : 0;
  for (const double norm : NormsOf(parts, norm_type)) {
    if (std::isnan(norm)) {
      total = norm;
    } else {
      total = infinite ? std::max(total, norm) : total + std::pow(norm, norm_type);
    }
  }
  for (comm::Communicator* group : groups) {
    const comm::Buffer buffer(summed.data(), summed.size());
    ThrowUnlessOk(AllReduce(*group, buffer, buffer, infinite ? comm::ReduceOp::kMax : comm::ReduceOp::kSum).Wait(),
                  "adding up the norm of gradients");
  }
  return at::scalar_tensor(infinite ? total : std::pow(total, 1.0 / norm_type),
                           summed[1] > 0 ? at::kDouble : at::kFloat);
}

void ClipByNorm(const std::vector<at::Tensor>& gradients, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  if (factor >= 1) return;
  for (at::Tensor gradient : gradients) gradient.mul_(factor);
}

}  // namespace cohort::trainer
