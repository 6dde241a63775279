#include "cohort/trainer/parallel/tensor/cut_parameter.h"

#include <memory>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

at::Tensor PartOfBox(at::Tensor tensor, const std::vector<int64_t>& begin, const std::vector<int64_t>& sizes) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    tensor = tensor.narrow(static_cast<int64_t>(dim), begin[dim], sizes[dim]);
  }
  return tensor;
}

}  // namespace

Placement CutOver(const TensorAxis& axis, std::vector<int64_t> sizes, const Cut& cut, const std::string& name) {
  Placement placement(std::move(sizes));
  if (axis.size() > 1) ThrowUnlessOk(placement.Split(axis.axis(), cut), name);
  return placement;
}

void DrawPart(at::Tensor part, const Placement& placement, const InitRule& rule) {
  const auto seed = static_cast<uint64_t>(torch::randint(int64_t{1} << 62, {1}, torch::kInt64).item<int64_t>());
  if (!HasData(part)) return;
  InitPart(std::move(part), placement, "", seed, rule);
}

void CopyPart(at::Tensor part, const Placement& placement, const at::Tensor& whole) {
  TORCH_CHECK(whole.sizes() == at::IntArrayRef(placement.sizes()), "a whole parameter of sizes ", whole.sizes(),
              " was given where it has sizes ", at::IntArrayRef(placement.sizes()));
  const at::NoGradGuard no_grad;
  for (const Box& box : placement.boxes()) {
    PartOfBox(part, box.local, box.sizes).copy_(PartOfBox(whole, box.offset, box.sizes));
  }
}

void SumGradientOver(const TensorAxis& axis, const at::Tensor& parameter) {
  if (axis.size() == 1) return;
  Placement placement = *Placements().OrWhole(parameter);
  ThrowUnlessOk(placement.Partial(axis.axis()), "SumGradientOver");
  Placements().Add(parameter, std::move(placement));
  parameter.register_hook([axis](const at::Tensor& gradient) { return StartAllReduce(gradient, axis.group()).Wait(); });
}

}  // namespace cohort::trainer
