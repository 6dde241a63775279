#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"

#include <string>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

// A module that only has children, for the parts of a layer's name before its last dot.
struct Folder : torch::nn::Module {};

void Register(torch::nn::Module& parent, const std::string& name, const std::shared_ptr<torch::nn::Module>& layer) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) {
    parent.register_module(name, layer);
    return;
  }
  const std::string folder = name.substr(0, dot);
  for (const auto& child : parent.named_children()) {
    if (child.key() == folder) return Register(*child.value(), name.substr(dot + 1), layer);
  }
  Register(*parent.register_module(folder, std::make_shared<Folder>()), name.substr(dot + 1), layer);
}

}  // namespace

StageModule::StageModule(std::vector<NamedLayer> layers) : layers_(std::move(layers)) {
  for (const NamedLayer& layer : layers_) Register(*this, layer.name, layer.module.ptr());
}

at::Tensor StageModule::forward(at::Tensor x) {
  for (NamedLayer& layer : layers_) x = layer.module.forward(x);
  return x;
}

std::shared_ptr<StageModule> TakeLayers(const std::vector<NamedLayer>& layers, const LayerCut& cut, int stage) {
  TORCH_CHECK(stage >= 0 && static_cast<size_t>(stage) + 1 < cut.size(), "stage ", stage, " of a cut into ",
              static_cast<int64_t>(cut.size()) - 1, " stages");
  const auto begin = layers.begin() + cut[static_cast<size_t>(stage)];
  const auto end = layers.begin() + cut[static_cast<size_t>(stage) + 1];
  auto module = std::make_shared<StageModule>(std::vector<NamedLayer>(begin, end));
  std::string lines;
  for (size_t each = 0; each + 1 < cut.size(); ++each) {
    lines += "stage " + std::to_string(each) + ":";
    for (int layer = cut[each]; layer < cut[each + 1]; ++layer) lines += " " + layers[static_cast<size_t>(layer)].name;
    lines += "\n";
  }
  module->set_cut(std::move(lines));
  return module;
}

}  // namespace cohort::trainer
