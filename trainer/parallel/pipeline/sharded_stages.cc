#include "cohort/trainer/parallel/pipeline/sharded_stages.h"

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

struct Names : torch::nn::Module {};

// Gives `into` the tensors of `from` and of all modules in it. Stages may have folders of the same name.
void AddNames(torch::nn::Module& into, const torch::nn::Module& from) {
  for (const auto& item : from.named_parameters(/*recurse=*/false)) {
    into.register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  for (const auto& item : from.named_buffers(/*recurse=*/false)) into.register_buffer(item.key(), item.value());
  for (const auto& child : from.named_children()) {
    std::shared_ptr<torch::nn::Module> folder;
    for (const auto& known : into.named_children()) {
      if (known.key() == child.key()) folder = known.value();
    }
    if (folder == nullptr) folder = into.register_module(child.key(), std::make_shared<Names>());
    AddNames(*folder, *child.value());
  }
}

}  // namespace

ShardedStages::ShardedStages(const std::vector<PipelineStage>& stages) : names_(std::make_shared<Names>()) {
  TORCH_CHECK(!stages.empty(), "ShardedStages: there is no stage");
  for (const PipelineStage& stage : stages) {
    ShardedModule* const shards = ShardedModuleOf(*stage.module);
    TORCH_CHECK(shards != nullptr, "ShardedStages: stage ", stage.index,
                " is not sharded; shard all stages of a rank, or none of them");
    register_module("stage" + std::to_string(stage.index), stage.module);
    stages_.push_back(shards);
    AddNames(*names_, shards->sharded_module());
  }
}

std::vector<ShardedParameter> ShardedStages::sharded_parameters() {
  std::vector<ShardedParameter> all;
  for (ShardedModule* const stage : stages_) {
    for (ShardedParameter& each : stage->sharded_parameters()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> ShardedStages::unwrapped_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const ShardedModule* const stage : stages_) {
    for (auto& each : stage->unwrapped_buffers()) all.push_back(std::move(each));
  }
  return all;
}

void ShardedStages::Reshard() {
  for (ShardedModule* const stage : stages_) stage->Reshard();
}

}  // namespace cohort::trainer
