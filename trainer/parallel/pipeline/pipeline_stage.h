// A stage of a pipeline: some layers of the model, on one device of one rank.
//
//   const std::vector<NamedLayer> layers = LayersOf(model);
//   auto module = TakeLayers(layers, CutByParameters(layers, 4), stage);
//   PipelineStage plain(stage, module);
//   PipelineStage replicated(stage, std::make_shared<DistributedDataParallel<StageModule>>(module, replicas));
//   PipelineStage sharded(stage, std::make_shared<FullyShardedDataParallel<StageModule>>(module, shards));
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/trainer/parallel/pipeline/layer_cut.h"
#include "cohort/trainer/placement/reducible.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// Layers one after another. Parameters and buffers have their names in the whole model.
class StageModule : public torch::nn::Module {
 public:
  explicit StageModule(std::vector<NamedLayer> layers);
  at::Tensor forward(at::Tensor x);
  // The layers of all stages, a line for each, which the ranks of a pipeline compare. Empty: not known.
  const std::string& cut() const { return cut_; }
  void set_cut(std::string cut) { cut_ = std::move(cut); }

 private:
  std::vector<NamedLayer> layers_;
  std::string cut_;
};

// The layers of one stage of a cut.
std::shared_ptr<StageModule> TakeLayers(const std::vector<NamedLayer>& layers, const LayerCut& cut, int stage);

// The part of a stage that a pipeline needs.
struct PipelineStage {
  PipelineStage(int stage, std::shared_ptr<torch::nn::Module> stage_module,
                std::function<at::Tensor(const at::Tensor&)> stage_forward, Reducible* stage_reducible = nullptr)
      : index(stage), module(std::move(stage_module)), forward(std::move(stage_forward)), reducible(stage_reducible) {}
  // A module, or a wrapper around one: DistributedDataParallel, ShardedDataParallel, FullyShardedDataParallel. It maps
  // one tensor to one tensor.
  template <typename Wrapper>
  PipelineStage(int stage, std::shared_ptr<Wrapper> wrapper)
      : index(stage), forward([wrapper](const at::Tensor& x) { return wrapper->forward(x); }) {
    if constexpr (std::is_base_of_v<torch::nn::Module, Wrapper>) {
      module = wrapper;
    } else {
      module = wrapper->module();
    }
    if constexpr (std::is_base_of_v<Reducible, Wrapper>) {
      reducible = wrapper.get();
    } else if constexpr (requires { wrapper->reducible(); }) {
      reducible = &wrapper->reducible();
    }
  }

  int index;  // in the pipeline
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
  Reducible* reducible = nullptr;  // null: gradients stay as they are accumulated
};

}  // namespace cohort::trainer
