#include "cohort/trainer/examples/gpt_plan.h"

#include <cstdio>
#include <functional>
#include <numeric>
#include <set>

#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/tensor/transformer_cost.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using trainer::Axis;
using trainer::AxisTraffic;
using trainer::TensorAxis;

constexpr int64_t kFloat = 4;

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

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

trainer::ParallelTransformerBlockOptions BlockOf(const GptOptions& model) {
  return trainer::ParallelTransformerBlockOptions(model.width, model.heads)
      .dropout(model.dropout)
      .attention_dropout(model.dropout);
}

// Blocks, or with recomputation their inputs and one block that is computed again; the last norm; the logits.
int64_t Activations(const TrainGptOptions& options, const TensorAxis& axis, const trainer::ActivationSizes& sizes) {
  const GptOptions& model = options.model;
  const int64_t own =
      axis.sequence_parallel() ? trainer::ChunkSizes(sizes.length, axis.size())[axis.rank()] : sizes.length;
  const int64_t between = sizes.rows * own * model.width * kFloat;
  const int64_t block = trainer::BlockActivationBytes(BlockOf(model), axis, sizes);
  const int64_t blocks = options.checkpoint_activations ? model.layers * between + block : model.layers * block;
  const int64_t classes = trainer::ChunkSizes(model.vocabulary, axis.size())[axis.rank()];
  return blocks + 2 * between + sizes.rows * sizes.length * classes * kFloat;
}

// Blocks; the embedding, which is summed as a row layer's results are; the head, a column layer; the loss.
AxisTraffic OverTensor(const TrainGptOptions& options, const TensorAxis& axis, const trainer::ActivationSizes& sizes) {
  AxisTraffic traffic;
  if (axis.size() == 1) return traffic;
  for (int64_t i = 0; i < options.model.layers; ++i) {
    traffic += BlockTraffic(BlockOf(options.model), axis, sizes, options.checkpoint_activations);
  }
  const int64_t places = sizes.rows * sizes.length, activation = places * options.model.width * kFloat;
  traffic.all_reduced += 3 * places * kFloat;
  if (!axis.sequence_parallel()) {
    traffic.all_reduced += 2 * activation;
    return traffic;
  }
  traffic.gathered += 3 * activation;
  traffic.scattered += 2 * activation;
  traffic.all_reduced += (2 + options.model.context) * options.model.width * kFloat;  // last norm, positions
  return traffic;
}

// A rank's elements, and those of blocks and of everything else, padded to equal shards.
struct Elements {
  int64_t own = 0, blocks = 0, others = 0;
};

Elements Count(const TrainGptOptions& options, const TensorAxis& axis, const Axis& shard) {
  const trainer::DeferredInit deferred;
  const Gpt model(options.model, axis,
                  [](const std::shared_ptr<GptBlock>& block) { return std::make_pair(block, Gpt::Forward()); });
  Elements elements;
  for (const auto& item : model.named_parameters()) {
    trainer::Placement placement = *trainer::Placements().OrWhole(item.value());
    const int64_t padded = trainer::RowChunkNumel(placement.local_sizes(), shard.size) * shard.size;
    (item.key().starts_with("block") ? elements.blocks : elements.others) += padded;
    if (shard.size > 1) trainer::ThrowUnlessOk(placement.Split(shard, {.dim = 0}), item.key());
    elements.own += Product(placement.local_sizes());
  }
  return elements;
}

}  // namespace

std::vector<RankPlan> PlanGpt(const TrainGptOptions& options, const trainer::MeshShape& mesh) {
  const int replicas = SizeOn(mesh, trainer::kReplicateAxis), shards = SizeOn(mesh, trainer::kShardAxis);
  TORCH_CHECK(options.batch_size % (replicas * shards) == 0, "a batch of ", options.batch_size,
              " passages can't be shared evenly by ", replicas * shards, " ranks; choose another --batch-size");
  const trainer::ActivationSizes sizes = {.rows = options.batch_size / (replicas * shards),
                                          .length = options.model.context};
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    RankPlan plan;
    const std::vector<int> places = trainer::MeshCoordinate(rank, mesh.sizes);
    for (size_t i = 0; i < places.size(); ++i) plan.at[mesh.names[i]] = places[i];
    const TensorAxis tensor(Axis{.name = trainer::kTensorAxis,
                                 .size = SizeOn(mesh, trainer::kTensorAxis),
                                 .rank = PlaceOn(plan.at, trainer::kTensorAxis)},
                            {.sequence_parallel = options.sequence_parallel, .sequence_dim = 1});
    const Axis shard = {.name = trainer::kShardAxis, .size = shards, .rank = PlaceOn(plan.at, trainer::kShardAxis)};
    const Elements elements = Count(options, tensor, shard);
    plan.parameters = plan.gradients = elements.own * kFloat;
    plan.optimizer = 2 * elements.own * kFloat;
    plan.activations = Activations(options, tensor, sizes);
    plan.sent[trainer::kTensorAxis] = OverTensor(options, tensor, sizes).SentByEach(tensor.size());
    // The outermost unit stays gathered from forward to backward.
    const AxisTraffic over_shards = {.gathered = (2 * elements.blocks + elements.others) * kFloat,
                                     .scattered = (elements.blocks + elements.others) * kFloat};
    plan.sent[trainer::kShardAxis] = over_shards.SentByEach(shards);
    const AxisTraffic over_replicas = {.all_reduced = (elements.blocks + elements.others) / shards * kFloat};
    plan.sent[trainer::kReplicateAxis] = over_replicas.SentByEach(replicas);
    plans.push_back(std::move(plan));
  }
  return plans;
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
      if (ranks.size() < 9)
        ranks += (ranks.empty() ? "" : ",") + std::to_string(j);
      else if (!ranks.ends_with("..."))
        ranks += "...";
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
  return table + "idle 0 % of a step: the mesh has no pipeline\n";
}

}  // namespace cohort::examples
