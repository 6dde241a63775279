#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"

#include <cmath>
#include <utility>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

Placement WeightPlacement(const ColumnParallelLinearOptions& options, const TensorAxis& axis) {
  return CutOver(axis, {options.out_features(), options.in_features()},
                 {.dim = 0, .blocks = options.blocks(), .unit = options.unit()}, "ColumnParallelLinear");
}

Placement BiasPlacement(const ColumnParallelLinearOptions& options, const TensorAxis& axis) {
  return CutOver(axis, {options.out_features()}, {.dim = 0, .blocks = options.blocks(), .unit = options.unit()},
                 "ColumnParallelLinear");
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(ColumnParallelLinearOptions options_in, TensorAxis axis_in)
    : options(std::move(options_in)), axis(std::move(axis_in)) {
  TORCH_CHECK(!options.gather_output() || (options.blocks().size() <= 1 && options.unit() == 1),
              "ColumnParallelLinear: gather_output can't join features of several blocks or units");
  reset();
}

void ColumnParallelLinearImpl::reset() {
  const Placement placement = WeightPlacement(options, axis);
  weight = register_parameter("weight", torch::empty(placement.local_sizes()));
  Placements().Add(weight, placement);
  if (options.bias()) {
    const Placement of_bias = BiasPlacement(options, axis);
    bias = register_parameter("bias", torch::empty(of_bias.local_sizes()));
    Placements().Add(bias, of_bias);
  } else {
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
  }
  reset_parameters();
}

void ColumnParallelLinearImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(options.in_features(), 1)));
  DrawPart(weight, WeightPlacement(options, axis), InitRule::Uniform(-bound, bound));
  if (bias.defined()) bias.zero_();
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& x) {
  const at::Tensor y = WithAdapter(column_parallel_linear(x, weight, bias, axis), x);
  if (!options.gather_output() || axis.size() == 1) return y;
  return gather_from_region(y, axis.group(), -1, options.out_features());
}

nn::LayerForm ColumnParallelLinearImpl::adaptable_form() const {
  return {.kind = nn::LayerKind::kLinear,
          .in_features = options.in_features(),
          .out_features = options.out_features(),
          .split = axis.size() > 1 ? nn::LayerSplit::kOutput : nn::LayerSplit::kNone,
          .axis = axis.axis(),
          .cut = {.dim = 0, .blocks = options.blocks(), .unit = options.unit()}};
}

std::optional<ActivationPart> ColumnParallelLinearImpl::input_part(const at::Tensor& x) const {
  return axis.SequencePart(x, axis.batch_dim());
}

at::Tensor ColumnParallelLinearImpl::low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reduced = torch::nn::functional::linear(x, axis.SharedParameter(a));
  return column_parallel_linear(reduced, b, at::Tensor(), axis);
}

}  // namespace cohort::trainer
