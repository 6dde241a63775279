#include "cohort/trainer/parallel/pipeline/stage_passes.h"

#include <utility>

#include "cohort/runtime/ranges.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// Shows a pass of a micro-batch in traces.
runtime::Range Shown(const char* pass, int micro_batch) {
  return runtime::Range(pass, runtime::RangeLane::kStages, static_cast<uint64_t>(micro_batch));
}

}  // namespace

at::Tensor StagePasses::Forward(int micro_batch, const at::Tensor& input, bool from_stage,
                                const std::function<at::Tensor(const at::Tensor&)>& finish) {
  const runtime::Range shown = Shown("forward", micro_batch);
  const bool records = at::GradMode::is_enabled();
  at::Tensor leaf = input;
  if (from_stage && records) {
    TORCH_CHECK(input.is_floating_point() || input.is_complex(), "Pipeline: stage ", stage_.index,
                " gets a tensor of type ", input.scalar_type(),
                "; between stages there are floating-point and complex numbers only, which have gradients");
    leaf = input.detach().requires_grad_();
  }
  at::Tensor output = stage_.forward(leaf);
  if (finish) output = finish(output);
  if (records) {
    UnderWay& pass = under_way_[micro_batch];
    if (from_stage) pass.input = leaf;
    if (output.requires_grad()) pass.output = torch::autograd::impl::gradient_edge(output);
    pass.options = output.options();
    pass.sizes = output.sizes().vec();
  }
  return output.detach();
}

StagePasses::UnderWay& StagePasses::Of(int micro_batch) {
  const auto found = under_way_.find(micro_batch);
  TORCH_CHECK(found != under_way_.end(), "Pipeline: stage ", stage_.index, " has no forward pass of micro-batch ",
              micro_batch, " under way");
  return found->second;
}

at::Tensor StagePasses::OutputGradient(const UnderWay& pass, const at::Tensor& gradient) const {
  if (gradient.defined()) return gradient;
  TORCH_CHECK(pass.sizes.empty(), "Pipeline: the loss must be a scalar, not a tensor of ", pass.sizes.size(),
              " dimensions");
  return at::ones({}, pass.options);
}

// The stage before waits for a gradient in any case.
at::Tensor StagePasses::GradientOrZero(const UnderWay& pass, at::Tensor gradient) {
  if (!pass.input.defined()) return {};
  return gradient.defined() ? std::move(gradient) : at::zeros_like(pass.input);
}

at::Tensor StagePasses::Backward(int micro_batch, const at::Tensor& gradient) {
  const runtime::Range shown = Shown("backward", micro_batch);
  UnderWay& pass = Of(micro_batch);
  if (pass.output.is_valid()) {
    torch::autograd::Engine::get_default_engine().execute({std::exchange(pass.output, {})},
                                                          {OutputGradient(pass, gradient)}, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  at::Tensor result = GradientOrZero(pass, pass.input.defined() ? pass.input.grad() : at::Tensor());
  under_way_.erase(micro_batch);
  return result;
}

at::Tensor StagePasses::InputGradient(int micro_batch, const at::Tensor& gradient) {
  const runtime::Range shown = Shown("input gradient", micro_batch);
  UnderWay& pass = Of(micro_batch);
  if (!pass.input.defined()) {
    pass.gradient = gradient;
    return {};
  }
  at::Tensor found;
  if (pass.output.is_valid()) {
    pass.has_split = true;
    found =
        pass.split.InputGradients({std::exchange(pass.output, {})}, {OutputGradient(pass, gradient)}, {pass.input})[0];
  }
  at::Tensor result = GradientOrZero(pass, std::move(found));
  pass.input.reset();
  return result;
}

void StagePasses::WeightGradient(int micro_batch) {
  const runtime::Range shown = Shown("weight gradient", micro_batch);
  UnderWay& pass = Of(micro_batch);
  if (pass.has_split) {
    pass.split.WeightGradients();
    under_way_.erase(micro_batch);
  } else {
    Backward(micro_batch, pass.gradient);
  }
}

}  // namespace cohort::trainer
