#include "cohort/trainer/examples/gpt/gpt_plan.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/gpt/gpt_pipeline.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"
#include "cohort/trainer/parallel/tensor/transformer_cost.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using trainer::ActionKind;
using trainer::Axis;
using trainer::AxisTraffic;
using trainer::TensorAxis;

constexpr int64_t kFloat = 4;
constexpr int64_t kSizesBytes = 128;  // of a pipeline's message about the sizes of another

int SizeOn(const trainer::MeshShape& mesh, const std::string& axis) {
  for (size_t i = 0; i < mesh.names.size(); ++i) {
    if (mesh.names[i] == axis) return mesh.sizes[i];
  }
  return 1;
}

int PlaceOn(const trainer::Coordinate& at, const std::string& axis) {
  const auto found = at.find(axis);
  return found == at.end() ? 0 : found->second;
}

bool HasPipeline(const trainer::MeshShape& mesh) {
  return std::find(mesh.names.begin(), mesh.names.end(), trainer::kPipelineAxis) != mesh.names.end();
}

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

trainer::ParallelTransformerBlockOptions BlockOf(const GptOptions& model) {
  return trainer::ParallelTransformerBlockOptions(model.width, model.heads)
      .dropout(model.dropout)
      .attention_dropout(model.dropout);
}

// A stage's share of a micro-batch.
struct StageSizes {
  int64_t kept = 0;      // activations from its forward to its backward pass
  int64_t computed = 0;  // and those that backward computes again, while it runs
  AxisTraffic tensor;
};

// The output of a layer that is none of a block's own: this rank's places.
int64_t BetweenBytes(const TrainGptOptions& options, const TensorAxis& axis, const trainer::ActivationSizes& sizes) {
  const int64_t own =
      axis.sequence_parallel() ? trainer::ChunkSizes(sizes.length, axis.size())[axis.rank()] : sizes.length;
  return sizes.rows * own * options.model.width * kFloat;
}

int64_t BlocksIn(const GptPart& part, const GptOptions& model) {
  return std::min<int64_t>(part.end, model.layers + 1) - std::max(part.begin, 1);
}

// Blocks, or with recomputation their inputs and one block that is computed again; the last norm; the logits; what a
// stage receives.
void AddActivations(StageSizes& stage, const TrainGptOptions& options, const GptPart& part, const TensorAxis& axis,
                    const trainer::ActivationSizes& sizes) {
  const GptOptions& model = options.model;
  const int64_t between = BetweenBytes(options, axis, sizes), blocks = BlocksIn(part, model);
  const int64_t block = trainer::BlockActivationBytes(BlockOf(model), axis, sizes);
  stage.kept = blocks * (options.checkpoint_activations ? between : block);
  if (options.checkpoint_activations && blocks > 0) stage.computed = block;
  if (part.begin > 0) stage.kept += between;
  if (part.end < model.layers + 2) return;
  const int64_t classes = trainer::ChunkSizes(model.vocabulary, axis.size())[axis.rank()];
  stage.kept += 2 * between + sizes.rows * sizes.length * classes * kFloat;
}

// Blocks; the embedding, which is summed as a row layer's results are; the head, a column layer; the loss. `splits`:
// the backward pass is in two parts, and a row layer gathers its gradient in both.
void AddTensorTraffic(StageSizes& stage, const TrainGptOptions& options, const GptPart& part, const TensorAxis& axis,
                      const trainer::ActivationSizes& sizes, bool splits) {
  if (axis.size() == 1) return;
  const GptOptions& model = options.model;
  AxisTraffic& traffic = stage.tensor;
  for (int64_t i = 0; i < BlocksIn(part, model); ++i) {
    traffic += BlockTraffic(BlockOf(model), axis, sizes, options.checkpoint_activations);
  }
  const bool first = part.begin == 0, last = part.end == model.layers + 2, parts = axis.sequence_parallel();
  const int64_t places = sizes.rows * sizes.length, activation = places * model.width * kFloat;
  if (splits && parts) traffic.gathered += 2 * BlocksIn(part, model) * activation;
  if (first) {
    (parts ? traffic.scattered : traffic.all_reduced) += activation;
    if (parts) traffic.gathered += activation;
    if (parts) traffic.all_reduced += model.context * model.width * kFloat;  // positions
  }
  if (last) {
    traffic.all_reduced += 3 * places * kFloat;
    if (!parts) traffic.all_reduced += activation;
    if (parts) traffic.gathered += 2 * activation;
    if (parts) traffic.scattered += activation;
    if (parts) traffic.all_reduced += 2 * model.width * kFloat;  // last norm
  }
}

// A rank's elements, and those of blocks and of everything else, padded to equal shards.
struct Elements {
  int64_t own = 0, blocks = 0, others = 0;
  int64_t shared = 0;  // of a head's copy of the embeddings, in `own` too

  void operator+=(const Elements& more) {
    own += more.own;
    blocks += more.blocks;
    others += more.others;
    shared += more.shared;
  }
};

// The layer of a parameter: embeddings, blocks, norm and head.
int LayerOf(const std::string& name, const GptOptions& model) {
  if (name.starts_with("block")) return std::stoi(name.substr(5)) + 1;
  return name.starts_with("tokens") || name.starts_with("positions") ? 0 : static_cast<int>(model.layers) + 1;
}

Elements Count(const TrainGptOptions& options, const GptPart& part, const TensorAxis& axis, const Axis& shard) {
  const trainer::DeferredInit deferred;
  const Gpt model(options.model, axis,
                  [](const std::shared_ptr<GptBlock>& block) { return std::make_pair(block, Gpt::Forward()); });
  const int head = static_cast<int>(options.model.layers) + 1;
  Elements elements;
  for (const auto& item : model.named_parameters()) {
    const int layer = LayerOf(item.key(), options.model);
    const bool copied = options.model.tied && item.key() == "tokens.weight" && part.begin > 0 && part.end > head;
    if (!copied && (layer < part.begin || layer >= part.end)) continue;
    trainer::Placement placement = *trainer::Placements().OrWhole(item.value());
    const int64_t padded = trainer::RowChunkNumel(placement.local_sizes(), shard.size) * shard.size;
    (item.key().starts_with("block") ? elements.blocks : elements.others) += padded;
    if (shard.size > 1) trainer::ThrowUnlessOk(placement.Split(shard, {.dim = 0}), item.key());
    elements.own += Product(placement.local_sizes());
    const bool original = options.model.tied && item.key() == "tokens.weight" && part.end <= head;
    if (copied || original) elements.shared += Product(placement.local_sizes());
  }
  return elements;
}

// The most activations that a rank of the pipeline has at a time.
int64_t PeakActivations(const std::vector<trainer::Action>& actions, const std::vector<StageSizes>& stages) {
  int64_t now = 0, peak = 0;
  for (const trainer::Action& action : actions) {
    const StageSizes& stage = stages[static_cast<size_t>(action.stage)];
    if (action.kind == ActionKind::kForward) now += stage.kept;
    const bool backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kInputGradient;
    peak = std::max(peak, now + (backward ? stage.computed : 0));
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient) now -= stage.kept;
  }
  return peak;
}

int64_t CountOf(const std::vector<trainer::Action>& actions, const std::vector<ActionKind>& kinds) {
  return std::count_if(actions.begin(), actions.end(), [&](const trainer::Action& action) {
    return std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end();
  });
}

// The options' schedule, or without a pipeline axis that of one stage with the whole batch.
trainer::Schedule ScheduleOn(const TrainGptOptions& options, const trainer::MeshShape& mesh) {
  const int ranks = SizeOn(mesh, trainer::kPipelineAxis);
  if (HasPipeline(mesh)) return ScheduleOf(options, ranks);
  auto schedule = trainer::BuildSchedule("gpipe", {1, 1, 1});
  trainer::ThrowUnlessOk(schedule.status(), "--dry-run");
  return *std::move(schedule);
}

// Whether a stage has its backward passes in two parts; the first one, which sends no gradient, has not.
bool SplitsBackward(const std::vector<trainer::Action>& actions, int stage) {
  return stage > 0 && std::any_of(actions.begin(), actions.end(), [=](const trainer::Action& action) {
           return action.kind == ActionKind::kInputGradient && action.stage == stage;
         });
}

// How often a stage's parameters are gathered in a step. A stage that shares a weight keeps them until its end.
int64_t Gathered(const trainer::Schedule& schedule, const std::vector<trainer::Action>& actions, int stage, bool tied) {
  const int64_t unshards = std::count_if(actions.begin(), actions.end(), [=](const trainer::Action& action) {
    return action.kind == ActionKind::kUnshard && action.stage == stage;
  });
  return tied && (stage == 0 || stage == schedule.stages - 1) ? 1 : unshards;
}

// Adds the traffic over the axes of the mesh that share the rank's parameters, `all` bytes.
void AddParameterTraffic(RankPlan& plan, const trainer::MeshShape& mesh, int64_t all, int64_t gathered) {
  const int shards = SizeOn(mesh, trainer::kShardAxis), replicas = SizeOn(mesh, trainer::kReplicateAxis);
  plan.sent[trainer::kShardAxis] = AxisTraffic{.gathered = gathered, .scattered = all}.SentByEach(shards);
  plan.sent[trainer::kReplicateAxis] = AxisTraffic{.all_reduced = all / shards}.SentByEach(replicas);
}

// The outputs of stages and their gradients, and once a step the sizes of each stage's output.
int64_t MessageBytes(const std::vector<trainer::Action>& actions, int64_t each) {
  std::set<int> senders;
  for (const trainer::Action& action : actions) {
    if (action.kind == ActionKind::kSendForward) senders.insert(action.stage);
  }
  return CountOf(actions, {ActionKind::kSendForward, ActionKind::kSendBackward}) * each +
         static_cast<int64_t>(senders.size()) * kSizesBytes;
}

RankPlan PlanRank(const TrainGptOptions& options, const trainer::MeshShape& mesh, const trainer::Schedule& schedule,
                  const trainer::ActivationSizes& sizes, trainer::Coordinate at) {
  RankPlan plan;
  plan.at = std::move(at);
  const TensorAxis tensor(Axis{.name = trainer::kTensorAxis,
                               .size = SizeOn(mesh, trainer::kTensorAxis),
                               .rank = PlaceOn(plan.at, trainer::kTensorAxis)},
                          {.sequence_parallel = options.sequence_parallel, .sequence_dim = 1});
  const Axis shard = {.name = trainer::kShardAxis,
                      .size = SizeOn(mesh, trainer::kShardAxis),
                      .rank = PlaceOn(plan.at, trainer::kShardAxis)};
  const int place = PlaceOn(plan.at, trainer::kPipelineAxis);
  const std::vector<trainer::Action>& actions = schedule.by_rank[static_cast<size_t>(place)];
  const std::vector<GptPart> parts = PartsOf(options, schedule.stages);
  std::vector<StageSizes> stages(parts.size());
  Elements elements;
  AxisTraffic over_tensor;
  int64_t gathered = 0;
  for (const int stage : trainer::StagesOf(schedule, place)) {
    const auto index = static_cast<size_t>(stage);
    const Elements own = Count(options, parts[index], tensor, shard);
    elements += own;
    if (HasPipeline(mesh)) {
      const int64_t times = Gathered(schedule, actions, stage, options.model.tied && parts.size() > 1);
      gathered += times * (own.blocks + own.others) * kFloat;
    } else {  // the outermost unit stays gathered; a block is gathered for each pass, and for its recomputation
      gathered += ((options.checkpoint_activations ? 3 : 2) * own.blocks + own.others) * kFloat;
    }
    AddActivations(stages[index], options, parts[index], tensor, sizes);
    AddTensorTraffic(stages[index], options, parts[index], tensor, sizes, SplitsBackward(actions, stage));
    for (int k = 0; k < schedule.micro_batches; ++k) over_tensor += stages[index].tensor;
  }
  plan.parameters = plan.gradients = elements.own * kFloat;
  plan.optimizer = 2 * elements.own * kFloat;
  plan.activations = PeakActivations(actions, stages);
  plan.sent[trainer::kTensorAxis] = over_tensor.SentByEach(tensor.size());
  AddParameterTraffic(plan, mesh, (elements.blocks + elements.others) * kFloat, gathered);
  const bool pairs = schedule.rank_of_stage.front() != schedule.rank_of_stage.back();
  plan.sent[trainer::kPipelineAxis] = MessageBytes(actions, BetweenBytes(options, tensor, sizes)) +
                                      AxisTraffic{.all_reduced = pairs ? elements.shared * kFloat : 0}.SentByEach(2);
  return plan;
}

}  // namespace

std::vector<RankPlan> PlanGpt(const TrainGptOptions& options, const trainer::MeshShape& mesh) {
  const int data_ranks = SizeOn(mesh, trainer::kReplicateAxis) * SizeOn(mesh, trainer::kShardAxis);
  const trainer::Schedule schedule = ScheduleOn(options, mesh);
  const int64_t parts = int64_t{data_ranks} * schedule.micro_batches;
  const trainer::ActivationSizes sizes = {.rows = options.batch_size / parts, .length = options.model.context};
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    trainer::Coordinate at;
    const std::vector<int> places = trainer::MeshCoordinate(rank, mesh.sizes);
    for (size_t i = 0; i < places.size(); ++i) at[mesh.names[i]] = places[i];
    plans.push_back(PlanRank(options, mesh, schedule, sizes, std::move(at)));
  }
  return plans;
}

std::string IdleText(const TrainGptOptions& options, const trainer::MeshShape& mesh) {
  if (!HasPipeline(mesh)) return "idle 0 % of a step: the mesh has no pipeline\n";
  const trainer::Schedule schedule = ScheduleOn(options, mesh);
  const auto timing = trainer::SimulateSchedule(schedule, {});
  trainer::ThrowUnlessOk(timing.status(), "--schedule " + options.schedule);
  char line[160];
  std::snprintf(line, sizeof line, "idle %.1f %% of a step under %s: %d stages, %d micro-batches\n",
                100 * timing->idle().value(), options.schedule.c_str(), schedule.stages, schedule.micro_batches);
  return line;
}

std::string PlanTable(const std::vector<RankPlan>& plans, const trainer::MeshShape& mesh) {
  using trainer::BytesText;
  char line[256];
  std::snprintf(line, sizeof line, "%-12s %12s %12s %12s %12s %12s  sent in a step\n", "ranks", "parameters",
                "gradients", "optimizer", "activations", "together");
  std::string table = line;
  std::vector<bool> told(plans.size(), false);
  for (size_t i = 0; i < plans.size(); ++i) {
    if (told[i]) continue;
    const RankPlan& plan = plans[i];
    std::string ranks;
    for (size_t j = i; j < plans.size(); ++j) {
      if (plans[j].total() != plan.total() || plans[j].parameters != plan.parameters || plans[j].sent != plan.sent) {
        continue;
      }
      told[j] = true;
      if (ranks.size() < 9) {
        ranks += (ranks.empty() ? "" : ",") + std::to_string(j);
      } else if (!ranks.ends_with("...")) {
        ranks += "...";
      }
    }
    std::snprintf(line, sizeof line, "%-12s %12s %12s %12s %12s %12s ", ranks.c_str(),
                  BytesText(plan.parameters).c_str(), BytesText(plan.gradients).c_str(),
                  BytesText(plan.optimizer).c_str(), BytesText(plan.activations).c_str(),
                  BytesText(plan.total()).c_str());
    table += line;
    for (const std::string& axis : mesh.names) {
      const auto sent = plan.sent.find(axis);
      if (sent != plan.sent.end()) table += " " + axis + " " + BytesText(sent->second);
    }
    table += "\n";
  }
  return table;
}

}  // namespace cohort::examples
