#include "cohort/trainer/parallel/pipeline/layer_cut.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Forward and backward time of one layer, and its output.
std::pair<double, at::Tensor> TimeLayer(NamedLayer layer, const at::Tensor& input) {
  const at::Tensor leaf = input.detach().requires_grad_(input.is_floating_point());
  const double begin = Seconds();
  at::Tensor output = layer.module.forward(leaf);
  if (output.requires_grad()) output.backward(torch::ones_like(output));
  return {Seconds() - begin, output.detach()};
}

}  // namespace

std::vector<NamedLayer> LayersOf(const torch::nn::Sequential& model, const std::string& prefix) {
  std::vector<NamedLayer> layers;
  const auto children = model->named_children();
  size_t i = 0;
  for (const torch::nn::AnyModule& module : *model) {
    layers.push_back({prefix.empty() ? children[i].key() : prefix + "." + children[i].key(), module});
    ++i;
  }
  return layers;
}

LayerCut CutEvenly(const std::vector<double>& weights, int stages) {
  const auto layers = static_cast<int>(weights.size());
  TORCH_CHECK(stages >= 1 && layers >= stages, "a pipeline of ", stages, " stages needs at least as many layers, not ",
              layers);
  std::vector<double> sum(weights.size() + 1, 0.0);
  for (size_t i = 0; i < weights.size(); ++i) sum[i + 1] = sum[i] + weights[i];
  // best[s][n]: the heaviest of s stages that have the first n layers.
  const auto rows = static_cast<size_t>(stages) + 1, columns = weights.size() + 1;
  std::vector<std::vector<double>> best(rows, std::vector<double>(columns, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> last(rows, std::vector<int>(columns, 0));
  best[0][0] = 0;
  for (size_t s = 1; s < rows; ++s) {
    for (size_t n = s; n < columns; ++n) {
      for (size_t begin = s - 1; begin < n; ++begin) {
        const double heaviest = std::max(best[s - 1][begin], sum[n] - sum[begin]);
        if (heaviest >= best[s][n]) continue;
        best[s][n] = heaviest;
        last[s][n] = static_cast<int>(begin);
      }
    }
  }
  LayerCut cut(rows, layers);
  for (size_t s = rows - 1; s > 0; --s) cut[s - 1] = last[s][static_cast<size_t>(cut[s])];
  return cut;
}

LayerCut CutByNumber(const std::vector<NamedLayer>& layers, int stages) {
  return CutEvenly(std::vector<double>(layers.size(), 1.0), stages);
}

LayerCut CutByParameters(const std::vector<NamedLayer>& layers, int stages) {
  std::vector<double> weights;
  for (const NamedLayer& layer : layers) {
    double weight = 0;
    for (const at::Tensor& parameter : layer.module.ptr()->parameters()) {
      weight += static_cast<double>(parameter.numel());
    }
    weights.push_back(weight);
  }
  return CutEvenly(weights, stages);
}

LayerCut CutByTime(const std::vector<NamedLayer>& layers, int stages, const at::Tensor& input, int repetitions) {
  std::vector<double> weights(layers.size(), std::numeric_limits<double>::infinity());
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  for (const NamedLayer& layer : layers) {
    for (const at::Tensor& parameter : layer.module.ptr()->parameters()) {
      gradients.emplace_back(parameter, parameter.grad());
      gradients.back().first.mutable_grad() = at::Tensor();
    }
  }
  for (int i = 0; i < std::max(1, repetitions); ++i) {
    at::Tensor x = input;
    for (size_t k = 0; k < layers.size(); ++k) {
      auto [seconds, output] = TimeLayer(layers[k], x);
      weights[k] = std::min(weights[k], seconds);
      x = output;
    }
  }
  for (auto& [parameter, gradient] : gradients) parameter.mutable_grad() = gradient;
  return CutEvenly(weights, stages);
}

}  // namespace cohort::trainer
