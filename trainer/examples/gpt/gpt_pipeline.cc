#include "cohort/trainer/examples/gpt/gpt_pipeline.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/gpt/gpt_adapter.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/sharded_stages.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using trainer::FullyShardedDataParallel;
using trainer::PipelineStage;
using trainer::ThrowUnlessOk;
using Block = std::pair<std::shared_ptr<torch::nn::Module>, Gpt::Forward>;

Gpt::WrapBlock Checkpointed(const TrainGptOptions& options) {
  return [recomputes = options.checkpoint_activations](const std::shared_ptr<GptBlock>& block) -> Block {
    const Gpt::Forward forward = [block](const at::Tensor& x) { return block->forward(x); };
    if (!recomputes) return {block, forward};
    return {block, [forward](const at::Tensor& x) { return trainer::checkpoint(forward, x); }};
  };
}

// A part of the model, sharded or replicated as the mesh says.
PipelineStage MakeStage(Training& training, int stage, const std::shared_ptr<Gpt>& part) {
  trainer::DeviceMesh& mesh = *training.mesh;
  if (mesh.has(trainer::kShardAxis)) {
    std::vector<std::string> data = {trainer::kShardAxis};
    if (mesh.has(trainer::kReplicateAxis)) data.emplace_back(trainer::kReplicateAxis);
    const auto of_data = mesh.Slice(data);
    ThrowUnlessOk(of_data.status(), "the data axes of --mesh");
    return {stage, std::make_shared<FullyShardedDataParallel<Gpt>>(part, **of_data, ShardOptions(training.options))};
  }
  // A stage without adapters has no gradients to average, and no DistributedDataParallel.
  if (mesh.has(trainer::kReplicateAxis) && !Trainable(*part).empty()) {
    const auto replicas = mesh.get_group(trainer::kReplicateAxis);
    ThrowUnlessOk(replicas.status(), "the replicas of --mesh");
    return {stage, std::make_shared<trainer::DistributedDataParallel<Gpt>>(part, **replicas)};
  }
  return {stage, part};
}

// Masks are those of one process: a micro-batch has rows of the whole batch.
void SetRowsOf(const Training& training, int micro_batch) {
  const int64_t rows = training.options.batch_size / training.data_ranks / training.options.micro_batches;
  trainer::RandomPlace place = trainer::random_place();
  place.micro_batch = 0;
  place.first_row = training.data_rank + micro_batch * rows * training.data_ranks;
  trainer::set_random_place(place);
}

// The rank's stages, for the optimizer and checkpoints: placements have the names of the whole model.
struct Stages : torch::nn::Module {
  explicit Stages(const std::vector<PipelineStage>& stages) {
    for (const PipelineStage& stage : stages) register_module("stage" + std::to_string(stage.index), stage.module);
  }
  explicit Stages(const std::vector<std::shared_ptr<Gpt>>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) register_module("part" + std::to_string(i), parts[i]);
  }
};

void MakeState(Training& training, const std::vector<PipelineStage>& stages) {
  const auto adam = [&](const torch::nn::Module& module) {
    training.optimizer = std::make_unique<torch::optim::AdamW>(Trainable(module), Adam(training.options));
  };
  if (training.mesh->has(trainer::kShardAxis)) {
    const auto shards = std::make_shared<trainer::ShardedStages>(stages);
    adam(*shards);
    training.state = trainer::StateOf(*shards, *training.optimizer, *training.mesh);
    training.module = shards;
  } else {
    training.module = std::make_shared<Stages>(stages);
    adam(*training.module);
    training.state = trainer::StateOf(*training.module, *training.optimizer, *training.mesh);
  }
}

}  // namespace

trainer::Schedule ScheduleOf(const TrainGptOptions& options, int ranks) {
  const trainer::ScheduleInfo* const info = trainer::FindSchedule(options.schedule);
  TORCH_CHECK(info != nullptr, "--schedule wants gpipe, 1f1b, interleaved, zb_h1 or zbv, not \"", options.schedule,
              "\"");
  const int stages = ranks * info->traits.least_stages_per_rank;
  TORCH_CHECK(stages <= options.model.layers + 2, "--schedule ", options.schedule, " on ", ranks, " ranks has ", stages,
              " stages, and the model has ", options.model.layers,
              " blocks, embeddings and a head to share among them");
  auto schedule = trainer::BuildSchedule(options.schedule, {ranks, stages, options.micro_batches});
  ThrowUnlessOk(schedule.status(), "--schedule " + options.schedule);
  return *std::move(schedule);
}

std::vector<GptPart> PartsOf(const TrainGptOptions& options, int stages) {
  const std::vector<double> layers(static_cast<size_t>(options.model.layers) + 2, 1.0);
  const trainer::LayerCut cut = trainer::CutEvenly(layers, stages);
  std::vector<GptPart> parts;
  for (size_t stage = 0; stage + 1 < cut.size(); ++stage) parts.push_back({cut[stage], cut[stage + 1]});
  return parts;
}

void MakePipeline(Training& training) {
  const TrainGptOptions& options = training.options;
  const auto group = training.mesh->get_group(trainer::kPipelineAxis);
  ThrowUnlessOk(group.status(), "the pipeline axis of --mesh");
  const trainer::Schedule schedule = ScheduleOf(options, (*group)->size());
  training.tensor.set_sequence_length(options.model.context);  // stages without embeddings are not told
  std::vector<PipelineStage> stages;
  {
    // Every rank draws the whole model for a moment, so that the values are those of one process.
    Gpt whole(options.model, training.tensor, Checkpointed(options));
    Adapt(training, whole);
    MoveToDevice(training, whole);
    const std::vector<GptPart> parts = PartsOf(options, schedule.stages);
    const std::vector<int> own = StagesOf(schedule, (*group)->rank());
    std::vector<std::shared_ptr<Gpt>> modules;  // all of them before the first is sharded: a head copies its weight
    for (const int stage : own) {
      modules.push_back(std::make_shared<Gpt>(whole, parts[static_cast<size_t>(stage)], Checkpointed(options)));
    }
    if (training.lora != nullptr) training.lora->Keep(Stages(modules));
    for (size_t i = 0; i < own.size(); ++i) stages.push_back(MakeStage(training, own[i], modules[i]));
  }
  trainer::PipelineOptions pipeline_options;
  pipeline_options.loss = [&training](const at::Tensor& logits, const at::Tensor& targets) {
    return Gpt::Loss(logits, targets, training.options.model, training.tensor);
  };
  pipeline_options.before_forward = [&training](int micro_batch) { SetRowsOf(training, micro_batch); };
  if (options.model.tied && schedule.stages > 1) {
    pipeline_options.shared_weights = {{0, "tokens.weight", schedule.stages - 1, "head.weight"}};
  }
  training.pipeline = std::make_unique<trainer::Pipeline>(stages, schedule, **group, pipeline_options);
  MakeState(training, stages);
}

}  // namespace cohort::examples
