// Pipeline trains a model whose stages lie on several ranks, or on several devices of a rank.
//
//   const std::vector<NamedLayer> layers = LayersOf(model);
//   auto schedule = BuildSchedule("1f1b", {.ranks = 4, .stages = 4, .micro_batches = 8});
//   std::vector<PipelineStage> stages;
//   for (int stage : StagesOf(*schedule, world.rank())) {
//     stages.emplace_back(stage, TakeLayers(layers, CutByParameters(layers, 4), stage));
//   }
//   Pipeline pipeline(stages, *schedule, world, {.loss = CrossEntropy});
//   pipeline.step(images, labels);   // all micro-batches, forward and backward; gradients are in .grad
//   optimizer.step();                // of the rank's own stages
//
// The schedule (schedule/registry.h) says in which order. Under every schedule whose backward passes come in the order
// of micro-batches, as those of schedules.def do, gradients have the bits of one process that accumulates the same
// micro-batches. The first stage's rank needs the inputs and the last one's the targets; others may give tensors that
// are not defined.
//
// After PyTorch's torch.distributed.pipelining; Huang et al. 2019, Narayanan et al. 2021, Qi et al. 2023.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/parallel/pipeline/micro_batches.h"
#include "cohort/trainer/parallel/pipeline/pipeline_stage.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"
#include "cohort/trainer/parallel/pipeline/shared_weights.h"

namespace cohort::trainer {

struct PipelineOptions {
  LossFunction loss;
  ValidTargets valid_targets = [](const at::Tensor& target) { return CountValidTargets(target); };
  // Called before each forward pass, on its thread, if it is set. The thread's RandomPlace (autograd/random_place.h) is
  // then the caller's of step, with the micro-batch's number, and may be changed for this pass.
  std::function<void(int micro_batch)> before_forward = {};
  // Equal on all ranks, except for devices. The pipeline makes all copies of a weight equal to the first.
  std::vector<SharedWeight> shared_weights = {};
  // This rank's. Each is what the schedule calls a rank: rank r has those from r * devices.size() on, and works on all
  // of them at once, in a thread each, which needs RuntimeOptions::progress_thread (Job has it). Empty: one, where the
  // rank's parameters are.
  std::vector<LocalDevice> devices = {};
  // A turn's sends and receives in host memory are one batch, as those in device memory always are.
  bool one_batch_per_turn = false;
};

struct StepResult {
  at::Tensor loss;                 // of the whole batch; defined on the rank of the last stage
  std::vector<at::Tensor> losses;  // of its micro-batches, on that rank
  at::Tensor output;               // of eval, on that rank
};

// The stages of a rank with `devices` devices, in order.
std::vector<int> StagesOf(const Schedule& schedule, int rank, int devices = 1);

class Pipeline {
 public:
  // `stages` are this rank's. `group` has a rank for each of the schedule's, or one for several devices of it, and must
  // outlive this. While this lives, the placement table (placement_table.h) has the parameters' names and owners. Of
  // two pipelines over one module at a time the first enters them and must end last. Collective; blocks. Throws
  // DistributedError on all ranks, which names the rank or the stages, for
  //   - a schedule that CheckSchedule refuses, and stages that do not fit it;
  //   - options that are missing or differ from rank 0's;
  //   - layers that ranks have cut otherwise (TakeLayers);
  //   - a shared weight of a stage or with a name that does not exist, that is two weights by the options, or of which
  //     stages have other sizes or types, or that is frozen on some.
  Pipeline(std::vector<PipelineStage> stages, Schedule schedule, comm::Communicator& group, PipelineOptions options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Forward and backward passes of a batch, which is cut into micro-batches along dimension 0. Each loss counts by its
  // share of the valid targets. Gradients are added to .grad, times `loss_scale` (a GradScaler's). Forward passes have
  // the caller's random_place() (random_place.h) with micro_batch = its micro_batch * micro-batches of a step + their
  // number in this one. The ranks compare seed and step of that place before their first step. On all ranks; blocks.
  // Throws DistributedError if a rank has failed or differs, which it names, and what modules throw. The other ranks
  // throw its text at once: the pipeline's group fails, those of its stages' replicas and shards, and those over which
  // their layers are cut. After that no other step is possible.
  StepResult step(const at::Tensor& inputs, const at::Tensor& targets, double loss_scale = 1);
  // Forward passes alone, without gradients; `targets` may be undefined, which gives no loss. As step.
  StepResult eval(const at::Tensor& inputs, const at::Tensor& targets = {});
  // Makes all copies of shared weights equal to the first, after they were loaded. Collective; blocks.
  void BroadcastSharedWeights();

  const Schedule& schedule() const;
  comm::Communicator& group() const;  // of the constructor
  const std::vector<PipelineStage>& stages() const;

 private:
  class Runner;
  std::unique_ptr<Runner> runner_;
};

}  // namespace cohort::trainer
