#include "cohort/trainer/parallel/tensor/cut_parameter.h"

#include <memory>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer {

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

void CutInPlace(at::Tensor parameter, const Placement& placement) {
  TORCH_CHECK(parameter.sizes() == at::IntArrayRef(placement.sizes()), "a parameter of sizes ", parameter.sizes(),
              " is to be cut, and its placement says ", at::IntArrayRef(placement.sizes()));
  const at::NoGradGuard no_grad;
  at::Tensor part = WithoutValues(placement.local_sizes(), parameter.options().requires_grad(false));
  if (HasData(parameter)) {
    part = at::empty(placement.local_sizes(), parameter.options().requires_grad(false));
    TakeBoxes(parameter.detach(), placement.boxes(), part);
  }
  parameter.mutable_grad() = at::Tensor();
  parameter.set_data(part);
  Placements().Add(parameter, placement);
}

void SumGradientOver(const TensorAxis& axis, const at::Tensor& parameter) {
  if (axis.size() == 1) return;
  Placement placement = *Placements().OrWhole(parameter);
  ThrowUnlessOk(placement.Partial(axis.axis()), "SumGradientOver");
  Placements().Add(parameter, std::move(placement));
  // A frozen parameter may be thawed later; torch takes hooks of those that need gradients only, and keeps them.
  const bool frozen = !parameter.requires_grad();
  if (frozen) parameter.set_requires_grad(true);
  parameter.register_hook([axis](const at::Tensor& gradient) { return StartAllReduce(gradient, axis.group()).Wait(); });
  if (frozen) parameter.set_requires_grad(false);
}

}  // namespace cohort::trainer
