// Stages under every wrapper, compared with one process that accumulates the micro-batches of all replicas: gradients,
// what optimizers make of them, weights that two stages share, norms over all stages, checkpoints.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/parallel/pipeline/sharded_stages.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/replicated_shards.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/placement/row_chunks.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

enum class Wrap { kNone, kDdp, kZero1, kZero2, kFsdp, kHsdp, kDdpOfFsdp };

constexpr const char* NameOf(Wrap wrap) {
  constexpr const char* kNames[] = {"plain", "ddp", "zero1", "zero2", "fsdp", "hsdp", "ddp of fsdp"};
  return kNames[static_cast<size_t>(wrap)];
}
bool Shards(Wrap wrap) { return wrap == Wrap::kFsdp || wrap == Wrap::kHsdp || wrap == Wrap::kDdpOfFsdp; }

// The mesh of a test: half of the ranks are a pipeline if that leaves two replicas; HSDP and the like have all four.
struct Grid {
  explicit Grid(Wrap wrap) {
    const int size = world->size();
    const bool square = wrap == Wrap::kHsdp || wrap == Wrap::kDdpOfFsdp;
    const int data = wrap == Wrap::kNone ? 1 : size % 2 != 0 ? size : 2;
    const int shards = square && size % 4 == 0 ? 2 : Shards(wrap) ? data : 1;
    const int replicas = square && size % 4 == 0 ? 2 : Shards(wrap) ? 1 : data;
    auto made =
        DeviceMesh::Create(*world, {size / (shards * replicas), replicas, shards}, {"pipeline", "replicate", "shard"});
    EXPECT_TRUE(made.ok()) << made.status();
    mesh = *std::move(made);
    data_mesh = *mesh->Slice({"replicate", "shard"});
    pipeline = *mesh->get_group("pipeline");
    replicate = *mesh->get_group("replicate");
    shard = *mesh->get_group("shard");
  }
  int data_ranks() const { return data_mesh->world().size(); }
  int data_rank() const { return data_mesh->world().rank(); }

  std::unique_ptr<DeviceMesh> mesh, data_mesh;
  comm::Communicator *pipeline = nullptr, *replicate = nullptr, *shard = nullptr;
};

// A stage, what wraps it, and its optimizer.
struct Wrapped {
  Wrapped(int stage, std::vector<NamedLayer> layers, const LayerCut& cut, Wrap wrap, Grid& grid) {
    const SGDOptions sgd(0.1);
    if (wrap == Wrap::kFsdp || wrap == Wrap::kHsdp) {  // some layers are units of their own
      for (int i = cut[static_cast<size_t>(stage)]; i < cut[static_cast<size_t>(stage) + 1]; i += 2) {
        const auto layer = std::dynamic_pointer_cast<Layer>(layers[static_cast<size_t>(i)].module.ptr());
        if (layer != nullptr) fully_shard(*layer, *grid.data_mesh);
      }
    }
    module = TakeLayers(layers, cut, stage);
    if (Shards(wrap)) {
      auto fsdp = wrap == Wrap::kDdpOfFsdp
                      ? std::make_shared<FullyShardedDataParallel<StageModule>>(module, *grid.shard)
                      : std::make_shared<FullyShardedDataParallel<StageModule>>(module, *grid.data_mesh);
      shards = fsdp.get();
      if (wrap == Wrap::kDdpOfFsdp) {
        using Outer = DistributedDataParallel<FullyShardedDataParallel<StageModule>>;
        pipeline_stage.emplace(stage, std::make_shared<Outer>(fsdp, *grid.replicate));
      } else {
        pipeline_stage.emplace(stage, fsdp);
      }
      optimizer = std::make_unique<SGD>(fsdp->parameters(), sgd);
    } else if (wrap == Wrap::kZero1 || wrap == Wrap::kZero2) {
      auto own = std::make_unique<ZeroRedundancyOptimizer<SGD>>(module->parameters(), *grid.replicate, sgd);
      zero = own.get();
      if (wrap == Wrap::kZero1) {
        auto ddp = std::make_shared<DistributedDataParallel<StageModule>>(module, *grid.replicate);
        pipeline_stage.emplace(stage, ddp);
      } else {
        auto sharded = std::make_shared<ShardedDataParallel<StageModule>>(module, *own, *grid.replicate);
        pipeline_stage.emplace(stage, sharded);
      }
      optimizer = std::move(own);
    } else {
      if (wrap == Wrap::kNone) {
        pipeline_stage.emplace(stage, module);
      } else {
        auto ddp = std::make_shared<DistributedDataParallel<StageModule>>(module, *grid.replicate);
        pipeline_stage.emplace(stage, ddp);
      }
      optimizer = std::make_unique<SGD>(module->parameters(), sgd);
    }
  }

  std::vector<at::Tensor> parameters() const { return pipeline_stage->module->parameters(); }
  // Keeps `step` from reducing this stage.
  void WithoutSync(const std::function<void()>& step) const {
    if (auto* const ddp = dynamic_cast<DataParallelState*>(pipeline_stage->reducible)) {
      const NoSyncGuard guard(*ddp);
      step();
    } else {
      const auto guard = shards->no_sync();
      step();
    }
  }

  std::shared_ptr<StageModule> module;
  std::optional<PipelineStage> pipeline_stage;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  FullyShardedModule* shards = nullptr;
  ZeroRedundancyOptimizer<SGD>* zero = nullptr;
};

std::vector<Wrapped> WrappedStages(const Schedule& schedule, torch::nn::Sequential& model, Wrap wrap, Grid& grid) {
  const std::vector<NamedLayer> layers = LayersOf(model);
  const LayerCut cut = CutByNumber(layers, schedule.stages);
  std::vector<Wrapped> stages;
  for (const int stage : StagesOf(schedule, grid.pipeline->rank())) {
    stages.emplace_back(stage, layers, cut, wrap, grid);
  }
  return stages;
}

std::vector<PipelineStage> For(const std::vector<Wrapped>& stages) {
  std::vector<PipelineStage> result;
  for (const Wrapped& each : stages) result.push_back(*each.pipeline_stage);
  return result;
}

// Compares gradients, or with `values` parameters, of what this rank has.
void ExpectEqual(const std::vector<Wrapped>& stages, const std::map<std::string, at::Tensor>& expected, bool values,
                 const std::string& what) {
  int compared = 0;
  const auto compare = [&](const std::string& name, const at::Tensor& parameter, const at::Tensor& wanted) {
    const at::Tensor found = values ? parameter.detach() : parameter.grad();
    ASSERT_TRUE(found.defined()) << what << " " << name;
    EXPECT_TRUE(torch::allclose(found, wanted, 1e-5, 1e-6)) << what << " " << name << "\n" << found << "\n" << wanted;
    ++compared;
  };
  for (const Wrapped& stage : stages) {
    if (stage.shards != nullptr) {
      for (const ShardedParameter& part : stage.shards->sharded_parameters()) {
        compare(part.name, part.tensor, PartOf(part, expected.at(part.name)));
      }
      continue;
    }
    for (const auto& item : stage.module->named_parameters()) {
      const bool own =
          stage.zero == nullptr || values || stage.zero->OwnerOf(item.value()) == stage.zero->join_group().rank();
      if (own) compare(item.key(), item.value(), expected.at(item.key()));
    }
  }
  EXPECT_GT(compared, 0) << what;
}

std::map<std::string, at::Tensor> GradientsOf(const torch::nn::Sequential& model, int divisor) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : model->named_parameters()) {
    if (item.value().grad().defined()) gradients[item.key()] = item.value().grad() / divisor;
  }
  return gradients;
}

std::map<std::string, at::Tensor> ValuesOf(const torch::nn::Sequential& model) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : model->named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

void Train(Wrap wrap, const char* name) {
  const std::string what = std::string(NameOf(wrap)) + " under " + name;
  Grid grid(wrap);
  const int ranks = grid.pipeline->size(), data = grid.data_ranks();
  const Schedule schedule = *BuildSchedule(name, {ranks, ranks * FindSchedule(name)->traits.least_stages_per_rank, 4});
  torch::nn::Sequential model = Model(), reference = Model();
  std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
  SGD own_optimizer(reference->parameters(), SGDOptions(0.1));
  {
    Pipeline pipeline(For(stages), schedule, *grid.pipeline, {.loss = Loss});
    for (int step = 0; step < 2; ++step) {
      for (Wrapped& stage : stages) stage.optimizer->zero_grad();
      const Batch batch = BatchOf(8, 20 + data * step + grid.data_rank());
      pipeline.step(batch.inputs, batch.targets);
      own_optimizer.zero_grad();
      for (int r = 0; r < data; ++r) Alone(reference, BatchOf(8, 20 + data * step + r), 4);
      const auto expected = GradientsOf(reference, data);
      ExpectEqual(stages, expected, /*values=*/false, what);
      for (Wrapped& stage : stages) stage.optimizer->step();
      for (const auto& item : reference->named_parameters()) item.value().mutable_grad().copy_(expected.at(item.key()));
      own_optimizer.step();
    }
    const Batch batch = BatchOf(8, 5);
    for (const PipelineStage& stage : pipeline.stages()) stage.module->eval();
    reference->eval();
    const StepResult result = pipeline.eval(batch.inputs);
    if (result.output.defined()) {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(torch::allclose(result.output, reference->forward(batch.inputs), 1e-4, 1e-5)) << what;
    }
  }
  ExpectEqual(stages, ValuesOf(reference), /*values=*/true, what);
}

TEST(WrappedStages, WrappedStagesHaveOneProcessesGradients) {
  for (const Wrap wrap : {Wrap::kDdp, Wrap::kZero1, Wrap::kZero2, Wrap::kFsdp, Wrap::kHsdp, Wrap::kDdpOfFsdp}) {
    for (const char* const name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"}) Train(wrap, name);
  }
}

TEST(WrappedStages, OneShardHasTheBitsOfOneProcess) {
  for (const char* const name : {"1f1b", "zbv"}) {
    const int ranks = world->size();
    const int stages_per_rank = FindSchedule(name)->traits.least_stages_per_rank;
    const Schedule schedule = *BuildSchedule(name, {ranks, ranks * stages_per_rank, 4});
    const int self[] = {world->rank()};
    auto alone = world->Subgroup(self);
    ASSERT_TRUE(alone.ok());
    torch::nn::Sequential model = Model(), reference = Model();
    const std::vector<NamedLayer> layers = LayersOf(model);
    const LayerCut cut = CutByNumber(layers, schedule.stages);
    std::vector<PipelineStage> stages;
    for (const int stage : StagesOf(schedule, world->rank())) {
      stages.emplace_back(
          stage, std::make_shared<FullyShardedDataParallel<StageModule>>(TakeLayers(layers, cut, stage), **alone));
    }
    Pipeline pipeline(stages, schedule, *world, {.loss = Loss});
    const Batch batch = BatchOf(8, 20);
    pipeline.step(batch.inputs, batch.targets);
    Alone(reference, batch, 4);
    const auto expected = GradientsOf(reference, 1);
    for (const PipelineStage& stage : pipeline.stages()) {
      for (const auto& item : stage.module->named_parameters()) {
        const std::string key = UnwrappedName(item.key());
        EXPECT_TRUE(torch::equal(item.value().grad(), expected.at(key))) << name << " " << key;
      }
    }
  }
}

// A chain of linear layers whose first weight is the last one's too.
torch::nn::Sequential Chain(bool tied) {
  torch::manual_seed(3);
  torch::nn::Linear first(kWidth, kWidth), last(kWidth, kWidth);
  if (tied) last->weight = first->weight;
  torch::nn::Sequential model(first);
  for (int i = 0; i < 8; ++i) model->push_back(torch::nn::Linear(kWidth, kWidth));
  model->push_back(last);
  return model;
}

// Also where optimizers or gradients are split (Megatron-LM#844). Two steps add up, as everywhere. The norm counts the
// weight once, and is that of all stages (torchtitan#596).
void ShareAWeight(Wrap wrap, const char* name) {
  const std::string what = std::string(NameOf(wrap)) + " under " + name;
  Grid grid(wrap);
  const int ranks = grid.pipeline->size(), data = grid.data_ranks();
  const int stage_count = ranks * FindSchedule(name)->traits.least_stages_per_rank;
  const Schedule schedule = *BuildSchedule(name, {ranks, stage_count, 4});
  torch::nn::Sequential model = Chain(false), reference = Chain(true);
  std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
  PipelineOptions options{.loss = Loss};
  options.shared_weights = {{0, "0.weight", stage_count - 1, "9.weight"}};
  Pipeline pipeline(For(stages), schedule, *grid.pipeline, options);
  for (int step = 0; step < (wrap == Wrap::kZero2 ? 1 : 2); ++step) {  // which frees other ranks' gradients
    const Batch batch = BatchOf(8, 9 + data * step + grid.data_rank());
    pipeline.step(batch.inputs, batch.targets);
    for (int r = 0; r < data; ++r) Alone(reference, BatchOf(8, 9 + data * step + r), 4);
  }
  for (const auto& item : reference->named_parameters()) {
    if (item.value().grad().defined()) item.value().mutable_grad().div_(data);
  }
  const auto with_copy = [&] {
    auto all = GradientsOf(reference, 1);
    all["9.weight"] = all.at("0.weight");
    return all;
  };
  ExpectEqual(stages, with_copy(), /*values=*/false, what);
  std::vector<at::Tensor> parameters;
  for (const Wrapped& stage : stages) {
    for (const at::Tensor& parameter : stage.parameters()) parameters.push_back(parameter);
    for (const auto& item : stage.module->named_parameters()) {
      if (item.key() != "9.weight") continue;
      EXPECT_EQ(NameInWhole(item.value(), item.key()), "0.weight") << what;
    }
  }
  const double norm = clip_grad_norm_(parameters, 0.01).item<double>();
  const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01);
  EXPECT_NEAR(norm, expected, 1e-5 * expected) << what;
  ExpectEqual(stages, with_copy(), /*values=*/false, what + ", clipped");
  auto values = ValuesOf(reference);
  values["9.weight"] = values.at("0.weight");
  ExpectEqual(stages, values, /*values=*/true, what);
}

TEST(WrappedStages, ASharedWeightHasTheSumOfBothStagesAndCountsOnce) {
  for (const Wrap wrap : {Wrap::kNone, Wrap::kDdp, Wrap::kZero1, Wrap::kZero2, Wrap::kFsdp, Wrap::kHsdp}) {
    for (const char* const name : {"gpipe", "1f1b", "zbv"}) ShareAWeight(wrap, name);
  }
}

// The two ranks would wait in different calls.
TEST(WrappedStages, ASharedWeightThatOneStageHasFrozenIsRefused) {
  const int last = world->size() - 1;
  if (last == 0) GTEST_SKIP() << "needs another rank";
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Chain(false);
  if (world->rank() == last) model->named_parameters()["9.weight"].requires_grad_(false);
  auto own = world->Duplicate();
  ASSERT_TRUE(own.ok());
  PipelineOptions options{.loss = Loss};
  options.shared_weights = {{0, "0.weight", last, "9.weight"}};
  const std::string why =
      WhyThrown([&] { const Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, **own, options); });
  if (world->rank() == 0 || world->rank() == last) {
    EXPECT_THAT(why, ::testing::HasSubstr("(frozen)"));
  }
}

// A step under no_sync leaves local gradients, those of a shared weight too; the next step averages both.
void Accumulate(Wrap wrap, const char* name) {
  const std::string what = std::string(NameOf(wrap)) + " under " + name;
  Grid grid(wrap);
  const int ranks = grid.pipeline->size(), data = grid.data_ranks();
  const int stage_count = ranks * FindSchedule(name)->traits.least_stages_per_rank;
  const Schedule schedule = *BuildSchedule(name, {ranks, stage_count, 4});
  torch::nn::Sequential model = Chain(false), reference = Chain(true), own = Chain(true);
  std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
  PipelineOptions options{.loss = Loss};
  options.shared_weights = {{0, "0.weight", stage_count - 1, "9.weight"}};
  Pipeline pipeline(For(stages), schedule, *grid.pipeline, options);
  std::function<void()> step = [&] {
    const Batch batch = BatchOf(8, 30 + grid.data_rank());
    pipeline.step(batch.inputs, batch.targets);
  };
  for (const Wrapped& stage : stages) {
    step = [&stage, before = step] { stage.WithoutSync(before); };
  }
  step();
  const auto with_copy = [](std::map<std::string, at::Tensor> all) {
    all["9.weight"] = all.at("0.weight");
    return all;
  };
  if (!Shards(wrap)) {
    Alone(own, BatchOf(8, 30 + grid.data_rank()), 4);
    ExpectEqual(stages, with_copy(GradientsOf(own, 1)), /*values=*/false, what + ", its own");
  }
  const Batch batch = BatchOf(8, 40 + grid.data_rank());
  pipeline.step(batch.inputs, batch.targets);
  for (int r = 0; r < data; ++r) {
    for (const int first : {30, 40}) Alone(reference, BatchOf(8, first + r), 4);
  }
  ExpectEqual(stages, with_copy(GradientsOf(reference, data)), /*values=*/false, what + ", averaged");
}

TEST(WrappedStages, NoSyncLeavesGradientsToTheNextStep) {
  for (const Wrap wrap : {Wrap::kDdp, Wrap::kZero1, Wrap::kZero2, Wrap::kFsdp, Wrap::kHsdp, Wrap::kDdpOfFsdp}) {
    for (const char* const name : {"1f1b", "zbv"}) Accumulate(wrap, name);
  }
}

// Sends are counted where they are sent: outputs and gradients, and the sizes of each output once.
void ExpectBytes(Wrap wrap, const char* name) {
  using comm::CollectiveKind;
  using Bytes = std::map<std::pair<std::string, CollectiveKind>, int64_t>;
  Grid grid(wrap);
  const int ranks = grid.pipeline->size(), shards = grid.shard->size();
  const int stage_count = ranks * FindSchedule(name)->traits.least_stages_per_rank;
  const Schedule schedule = *BuildSchedule(name, {ranks, stage_count, 4});
  torch::nn::Sequential model = Model();
  std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
  Bytes expected;
  constexpr int64_t kRows = 8, kFloat = 4, kSizes = 16 * 8;
  for (const Wrapped& stage : stages) {
    const auto crosses = [&](int from, int to) {
      return to >= 0 && to < stage_count &&
             schedule.rank_of_stage[static_cast<size_t>(from)] != schedule.rank_of_stage[static_cast<size_t>(to)];
    };
    const int at = stage.pipeline_stage->index;
    int64_t& sent = expected[{"pipeline", CollectiveKind::kSend}];
    if (crosses(at, at + 1)) sent += kRows * kWidth * kFloat + kSizes;
    if (crosses(at, at - 1)) sent += kRows * kWidth * kFloat;
    int64_t padded = 0;  // rows are rounded up to equal numbers on all shards
    for (const at::Tensor& parameter : stage.parameters()) {
      padded += RowChunkNumel(Placements().OrWhole(parameter)->sizes(), shards) * shards * kFloat;
    }
    if (shards > 1) {  // gathered once, for all micro-batches
      expected[{"shard", CollectiveKind::kAllGather}] += padded;
      expected[{"shard", CollectiveKind::kReduceScatter}] += padded;
    }
    if (grid.replicate->size() > 1) expected[{"replicate", CollectiveKind::kAllReduce}] += padded / shards;
  }
  Pipeline pipeline(For(stages), schedule, *grid.pipeline, {.loss = Loss});
  const Batch batch = BatchOf(kRows, 20 + grid.data_rank());
  for (int step = 0; step < 2; ++step) pipeline.step(batch.inputs, batch.targets);  // buckets settle
  Bytes moved;
  {
    const CommunicationLedger ledger;
    pipeline.step(batch.inputs, batch.targets);
    for (const auto& [key, entry] : ledger.by_axis(*grid.mesh)) {
      if (!key.first.empty() && key.second != CollectiveKind::kRecv && entry.bytes > 0) moved[key] = entry.bytes;
    }
  }
  std::erase_if(expected, [](const auto& entry) { return entry.second == 0; });
  EXPECT_EQ(moved, expected) << NameOf(wrap) << " under " << name;
}

TEST(WrappedStages, BytesOfEachAxisAreThoseOfItsFormula) {
  for (const Wrap wrap : {Wrap::kNone, Wrap::kDdp, Wrap::kFsdp, Wrap::kHsdp}) {
    for (const char* const name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"}) ExpectBytes(wrap, name);
  }
}

class WrappedStagesInCheckpoints : public Checkpoints {};

// Several stages of a rank are one module; whole models load what it saves, and the other way round.
TEST_F(WrappedStagesInCheckpoints, ShardedStagesOfARankAreOneModule) {
  for (const Wrap wrap : {Wrap::kFsdp, Wrap::kHsdp}) {
    Grid grid(wrap);
    const int ranks = grid.pipeline->size();
    const Schedule schedule = *BuildSchedule("zbv", {ranks, 2 * ranks, 4});
    torch::nn::Sequential model = Model(), reference = Model();
    std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
    Pipeline pipeline(For(stages), schedule, *grid.pipeline, {.loss = Loss});
    ShardedStages mine(pipeline.stages());
    torch::optim::AdamW optimizer(mine.parameters(), 0.1), whole(reference->parameters(), 0.1);
    const Batch batch = BatchOf(8, 20 + grid.data_rank());
    pipeline.step(batch.inputs, batch.targets);
    optimizer.step();
    const std::string there = At(NameOf(wrap)), back = there + " back";
    SaveTrainingState(*world, there, StateOf(mine, optimizer, *grid.mesh), {});
    const TrainingState of_whole = StateOf(*reference, whole, *world);
    LoadTrainingState(*world, there, of_whole);
    ExpectEqual(stages, ValuesOf(reference), /*values=*/true, NameOf(wrap));
    SaveTrainingState(*world, back, of_whole, {});
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : mine.parameters()) parameter.zero_();
    LoadTrainingState(*world, back, StateOf(mine, optimizer, *grid.mesh));
    ExpectEqual(stages, ValuesOf(reference), /*values=*/true, std::string(NameOf(wrap)) + ", back");
  }
}

TEST(WrappedStages, ShardedStagesWantShards) {
  torch::nn::Sequential model = Model();
  const Schedule schedule = *BuildSchedule("1f1b", {1, 1, 1});
  EXPECT_THAT(WhyThrown([&] { ShardedStages mine(StagesFor(schedule, model, 0)); }),
              ::testing::HasSubstr("stage 0 is not sharded"));
  EXPECT_THAT(WhyThrown([&] { ShardedStages mine({}); }), ::testing::HasSubstr("there is no stage"));
}

// A stage's error ends the step of the other replicas' pipelines too, which wait for its gradients.
TEST(WrappedStages, AnExceptionEndsTheStepOfAllReplicas) {
  if (world->size() < 2) GTEST_SKIP() << "needs another rank";
  for (const Wrap wrap : {Wrap::kDdp, Wrap::kFsdp}) {
    Grid grid(wrap);
    const Schedule schedule = *BuildSchedule("1f1b", {grid.pipeline->size(), grid.pipeline->size(), 4});
    auto own = grid.pipeline->Duplicate();
    ASSERT_TRUE(own.ok());
    torch::nn::Sequential model = Model();
    std::vector<Wrapped> stages = WrappedStages(schedule, model, wrap, grid);
    int calls = 0;
    if (world->rank() == 0) {
      stages.front().pipeline_stage->forward = [&,
                                                before = stages.front().pipeline_stage->forward](const at::Tensor& x) {
        TORCH_CHECK(++calls < 3, "the third micro-batch is too much");
        return before(x);
      };
    }
    Pipeline pipeline(For(stages), schedule, **own, {.loss = Loss});
    const Batch batch = BatchOf(8, 5);
    ASSERT_TRUE(world->Barrier().Wait().ok());  // or rank 0 throws while others still make their stages
    EXPECT_THAT(WhyThrown([&] { pipeline.step(batch.inputs, batch.targets); }),
                ::testing::HasSubstr("the third micro-batch is too much"))
        << NameOf(wrap);
  }
}

}  // namespace
}  // namespace cohort::trainer
