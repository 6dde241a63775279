#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"

#include <cmath>
#include <utility>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

Placement WeightPlacement(const RowParallelLinearOptions& options, const TensorAxis& axis) {
  return CutOver(axis, {options.out_features(), options.in_features()}, {.dim = 1, .unit = options.unit()},
                 "RowParallelLinear");
}

}  // namespace

RowParallelLinearImpl::RowParallelLinearImpl(RowParallelLinearOptions options_in, TensorAxis axis_in)
    : options(options_in), axis(std::move(axis_in)) {
  TORCH_CHECK(options.input_is_parallel() || (options.unit() == 1 && !axis.sequence_parallel()),
              "RowParallelLinear: input_is_parallel(false) goes neither with units nor with sequence parallelism");
  reset();
}

void RowParallelLinearImpl::reset() {
  const Placement placement = WeightPlacement(options, axis);
  weight = register_parameter("weight", torch::empty(placement.local_sizes()));
  Placements().Add(weight, placement);
  if (options.bias()) {
    bias = register_parameter("bias", torch::empty({options.out_features()}));
    if (axis.sequence_parallel()) SumGradientOver(axis, bias);
  } else {
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
  }
  reset_parameters();
}

void RowParallelLinearImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(options.in_features(), 1)));
  DrawPart(weight, WeightPlacement(options, axis), InitRule::Uniform(-bound, bound));
  if (bias.defined()) bias.zero_();
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& x) {
  const bool scatter = !options.input_is_parallel() && axis.size() > 1;
  if (axis.size() == 1 && adapter() == nullptr) return torch::nn::functional::linear(x, weight, bias);
  const at::Tensor own = scatter ? scatter_to_region(x, axis.group(), -1) : x;
  const at::Tensor y = WithAdapter(row_parallel_linear(own, weight, axis), own);
  return bias.defined() ? y + bias : y;
}

nn::LayerForm RowParallelLinearImpl::adaptable_form() const {
  return {.kind = nn::LayerKind::kLinear,
          .in_features = options.in_features(),
          .out_features = options.out_features(),
          .split = axis.size() > 1 ? nn::LayerSplit::kInput : nn::LayerSplit::kNone,
          .axis = axis.axis(),
          .cut = {.dim = 1, .unit = options.unit()}};
}

// The input has the whole sequence, and this rank's features.
std::optional<ActivationPart> RowParallelLinearImpl::input_part(const at::Tensor& x) const {
  const std::vector<Box> boxes = WeightPlacement(options, axis).boxes();
  return ActivationPart{.batch_dim = axis.batch_dim(),
                        .cut_dim = x.dim() - 1,
                        .begin = boxes.empty() ? 0 : boxes.front().offset[1],
                        .whole = options.in_features()};
}

at::Tensor RowParallelLinearImpl::low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
  return torch::nn::functional::linear(row_parallel_linear(x, a, axis), axis.SharedParameter(b));
}

}  // namespace cohort::trainer
