// ShardedStages: the sharded stages of a rank as one module, for their optimizer, norms and checkpoints.
//
//   ShardedStages mine(pipeline.stages());
//   torch::optim::AdamW optimizer(mine.parameters(), 1e-3);
//   TrainingState state = StateOf(mine, optimizer, *mesh);  // after the pipeline: placements have the stages by then
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"
#include "cohort/trainer/placement/sharded_module.h"

namespace cohort::trainer {

class ShardedStages : public ShardedModule {
 public:
  // All stages are sharded over the same groups. Throws c10::Error for none, and for one that is not sharded.
  explicit ShardedStages(const std::vector<PipelineStage>& stages);

  // A copy of the modules' tree without their forward passes: it has the names of the whole model.
  const torch::nn::Module& sharded_module() const override { return *names_; }
  std::vector<ShardedParameter> sharded_parameters() override;
  std::vector<std::pair<std::string, at::Tensor>> unwrapped_buffers() const override;
  void Reshard() override;
  const comm::Communicator* replicas() override { return stages_.front()->replicas(); }
  int place() const override { return stages_.front()->place(); }
  int places() const override { return stages_.front()->places(); }

 private:
  std::vector<ShardedModule*> stages_;  // registered modules, or what shards them
  std::shared_ptr<torch::nn::Module> names_;
};

}  // namespace cohort::trainer
