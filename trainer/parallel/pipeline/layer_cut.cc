#include "cohort/trainer/parallel/pipeline/layer_cut.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "cohort/trainer/autograd/random_states.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The work of these devices is done.
void Await(const std::set<c10::DeviceIndex>& devices) {
  for (const c10::DeviceIndex device : devices) torch::cuda::synchronize(device);
}

// Forward and backward time of one layer, and its output.
std::pair<double, at::Tensor> TimeLayer(NamedLayer layer, const at::Tensor& input,
                                        const std::set<c10::DeviceIndex>& devices) {
  const at::Tensor leaf = input.detach().requires_grad_(input.is_floating_point());
  Await(devices);
  const double begin = Seconds();
  at::Tensor output = layer.module.forward(leaf);
  if (output.requires_grad()) output.backward(torch::ones_like(output));
  Await(devices);
  return {Seconds() - begin, output.detach()};
}

// All that running layers changes, which is as before at the end. Parameters have no gradients meanwhile.
class [[nodiscard]] Trial {
 public:
  Trial(const std::vector<NamedLayer>& layers, const at::Tensor& input)
      : random_(RandomStates::Of(TensorsOf(layers, input))), regions_(RegionStates()) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : TensorsOf(layers, input)) {
      if (tensor.is_cuda()) devices_.insert(tensor.get_device());
    }
    for (const NamedLayer& layer : layers) {
      for (const at::Tensor& parameter : layer.module.ptr()->parameters()) {
        gradients_.emplace_back(parameter, parameter.grad());
        gradients_.back().first.mutable_grad() = at::Tensor();
      }
      for (const at::Tensor& buffer : layer.module.ptr()->buffers()) buffers_.emplace_back(buffer, buffer.clone());
    }
  }
  ~Trial() {
    const at::NoGradGuard no_grad;
    // Backwards: of a parameter that layers share the first entry has its gradient.
    for (auto each = gradients_.rbegin(); each != gradients_.rend(); ++each) each->first.mutable_grad() = each->second;
    for (auto& [buffer, before] : buffers_) buffer.copy_(before);
    RestoreRegionStates(regions_);
    random_.Restore();
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  const std::set<c10::DeviceIndex>& devices() const { return devices_; }

 private:
  static std::vector<at::Tensor> TensorsOf(const std::vector<NamedLayer>& layers, const at::Tensor& input) {
    std::vector<at::Tensor> tensors = {input};
    for (const NamedLayer& layer : layers) {
      for (const at::Tensor& parameter : layer.module.ptr()->parameters()) tensors.push_back(parameter);
    }
    return tensors;
  }

  RandomStates random_;
  std::map<std::string, RandomStates> regions_;
  std::set<c10::DeviceIndex> devices_;                                  // of CUDA
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_, buffers_;  // with what they were
};

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
  const Trial trial(layers, input);
  const at::AutoGradMode records(true);
  for (int i = 0; i < std::max(1, repetitions); ++i) {
    at::Tensor x = input;
    for (size_t k = 0; k < layers.size(); ++k) {
      auto [seconds, output] = TimeLayer(layers[k], x, trial.devices());
      weights[k] = std::min(weights[k], seconds);
      x = output;
    }
  }
  return CutEvenly(weights, stages);
}

}  // namespace cohort::trainer
