// Checkpoints of any two ways to train: parameters and the optimizer's state move with all their bits.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/sharded_stages.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/sharded_init.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/layers.h"
#include "tests/trainer/parallelize/mesh_model.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using ZeroAdamW = ZeroRedundancyOptimizer<AdamW>;

enum class CutBy { kTensor, kTorchShard };

// Rows of the embedding, and what it and the two layers after it give.
struct Sizes {
  int64_t tokens = 11, width = 6, hidden = 10, out = 5;
};

struct Tail : torch::nn::Module {
  Tail() {
    scale = register_parameter("scale", torch::ones({}));
    count = register_buffer("count", torch::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
  at::Tensor scale, count;
};

// An embedding and two layers. On an axis of one rank they are ordinary ones; names and initial values, by element, are
// the same in every way.
torch::nn::Sequential MakeMlp(CutBy layers, const TensorAxis& axis, const Sizes& sizes) {
  using torch::nn::Functional;
  torch::nn::Sequential mlp;
  const auto [tokens, width, hidden, out] = sizes;
  if (layers == CutBy::kTorchShard) {
    namespace nn = torchshard::nn;
    mlp->push_back("tokens", nn::ParallelEmbedding(nn::ParallelEmbeddingOptions(tokens, width).dim(0)));
    mlp->push_back("up", nn::ParallelLinear(nn::ParallelLinearOptions(width, hidden).dim(1)));
    mlp->push_back("act", Functional([](const at::Tensor& x) {
                     const at::Tensor y = torch::tanh(x);
                     torchshard::register_parallel_dim(y, -1);
                     return y;
                   }));
    mlp->push_back("down", nn::ParallelLinear(nn::ParallelLinearOptions(hidden, out).dim(0)));
  } else {
    mlp->push_back("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(tokens, width), axis));
    mlp->push_back("up", ColumnParallelLinear(ColumnParallelLinearOptions(width, hidden), axis));
    mlp->push_back("act", Functional([](const at::Tensor& x) { return torch::tanh(x); }));
    mlp->push_back("down", RowParallelLinear(RowParallelLinearOptions(hidden, out), axis));
  }
  mlp->push_back("tail", Tail());
  init_parameters(*mlp, 11, [](const std::string& name, const std::vector<int64_t>& of) {
    return of.size() > 1 ? LikeTorch(name, of) : InitRule::Constant(0.5);
  });
  return mlp;
}

// The layers as wrappers take them.
struct Mlp : torch::nn::Module {
  explicit Mlp(torch::nn::Sequential layers) : layers(std::move(layers)) {
    for (const auto& item : this->layers->named_children()) register_module(item.key(), item.value());
  }
  at::Tensor forward(const at::Tensor& codes) { return layers->forward(codes); }
  torch::nn::Sequential layers;
};

// One way to train: a model with its optimizer, and the state that checkpoints keep.
struct Way {
  Way() = default;
  ~Way() {
    if (torchshard::distributed::is_initialized()) torchshard::distributed::destroy_process_group();
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  std::string name;
  comm::Communicator* group = nullptr;  // saves and loads
  std::unique_ptr<comm::Communicator> alone;
  std::unique_ptr<DeviceMesh> mesh, data;
  Sizes sizes;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<void> wrapper, pipeline;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  TrainingState state;
  std::function<void(const at::Tensor&)> backward;

  // All ranks train on the same rows, so that every way does the same but for rounding.
  void Train() {
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      backward(torch::randint(sizes.tokens, {8}, at::detail::createCPUGenerator(step), torch::kInt64));
      optimizer->step();
    }
  }
};

AdamWOptions Adam() { return AdamWOptions(0.05); }

template <typename Module>
std::function<void(const at::Tensor&)> BackwardOf(std::shared_ptr<Module> module) {
  return [module = std::move(module)](const at::Tensor& codes) { module->forward(codes).pow(2).mean().backward(); };
}

// Stages of some of the layers each, sharded or whole.
void MakePipeline(Way& way, const torch::nn::Sequential& mlp) {
  DeviceMesh& mesh = *way.mesh;
  const Axis axis = mesh.axis(kPipelineAxis).value();
  const Schedule schedule = BuildSchedule("1f1b", {axis.size, axis.size, 2}).value();
  const std::vector<NamedLayer> layers = LayersOf(mlp);
  const auto module = TakeLayers(layers, CutByNumber(layers, axis.size), axis.rank);
  std::vector<PipelineStage> stages;
  if (mesh.has(kShardAxis)) {
    way.data = mesh.Slice({kShardAxis}).value();
    stages.emplace_back(axis.rank, std::make_shared<FullyShardedDataParallel<StageModule>>(module, *way.data));
  } else {
    stages.emplace_back(axis.rank, module);
  }
  const auto loss = [](const at::Tensor& output, const at::Tensor&) { return output.pow(2).mean(); };
  const auto pipeline = std::make_shared<Pipeline>(stages, schedule, *axis.group, PipelineOptions{.loss = loss});
  way.pipeline = pipeline;
  way.backward = [pipeline](const at::Tensor& codes) { pipeline->step(codes, codes); };
  if (mesh.has(kShardAxis)) {
    const auto shards = std::make_shared<ShardedStages>(stages);
    way.module = shards;
    way.optimizer = std::make_unique<AdamW>(shards->parameters(), Adam());
    way.state = StateOf(*shards, *way.optimizer, mesh);
  } else {
    way.module = module;
    way.optimizer = std::make_unique<AdamW>(module->parameters(), Adam());
    way.state = StateOf(*module, *way.optimizer, mesh);
  }
}

// "single", or "how:mesh", where how is ddp, zero1, zero2, fsdp, torchshard or pipeline.
std::unique_ptr<Way> Make(const std::string& name, const Sizes& sizes = {}) {
  auto way = std::make_unique<Way>();
  way->name = name;
  way->group = world.get();
  way->sizes = sizes;
  const std::string how = name.substr(0, name.find(':'));
  if (how == "single") {
    way->alone = First(1);
    if (way->alone == nullptr) return nullptr;
    way->group = way->alone.get();
    const auto mlp = std::make_shared<Mlp>(MakeMlp(CutBy::kTensor, TensorAxis(), sizes));
    way->module = mlp;
    way->optimizer = std::make_unique<AdamW>(mlp->parameters(), Adam());
    way->state = StateOf(*mlp, *way->optimizer, *way->alone);
    way->backward = BackwardOf(mlp);
    return way;
  }
  way->mesh = init_device_mesh(*world, name.substr(how.size() + 1));
  DeviceMesh& mesh = *way->mesh;
  const TensorAxis axis = mesh.has(kTensorAxis) ? TensorAxis(mesh.axis(kTensorAxis).value()) : TensorAxis();
  if (how == "torchshard") torchshard::distributed::init_process_group(*world, mesh.size(kTensorAxis).value());
  const auto layers = MakeMlp(how == "torchshard" ? CutBy::kTorchShard : CutBy::kTensor, axis, sizes);
  if (how == "pipeline") {
    MakePipeline(*way, layers);
    return way;
  }
  const auto mlp = std::make_shared<Mlp>(layers);
  if (how == "fsdp") {
    std::vector<std::string> data = {kShardAxis};
    if (mesh.has(kReplicateAxis)) data.emplace_back(kReplicateAxis);
    way->data = mesh.Slice(data).value();
    const auto fsdp = std::make_shared<FullyShardedDataParallel<Mlp>>(mlp, *way->data);
    way->module = fsdp;
    way->optimizer = std::make_unique<AdamW>(fsdp->parameters(), Adam());
    way->state = StateOf(*fsdp, *way->optimizer, mesh);
    way->backward = BackwardOf(fsdp);
    return way;
  }
  way->module = mlp;
  const bool replicates = mesh.has(kReplicateAxis);
  comm::Communicator* replicas = replicates ? mesh.get_group(kReplicateAxis).value() : nullptr;
  std::shared_ptr<DistributedDataParallel<Mlp>> ddp;
  if (how == "zero1" || how == "zero2") {
    auto zero = std::make_unique<ZeroAdamW>(mlp->parameters(), *replicas, Adam());
    ddp = how == "zero1" ? std::make_shared<DistributedDataParallel<Mlp>>(mlp, *replicas)
                         : std::make_shared<ShardedDataParallel<Mlp>>(mlp, *zero, *replicas);
    way->state = StateOf(*mlp, *zero, mesh);
    way->optimizer = std::move(zero);
  } else {
    if (replicates) ddp = std::make_shared<DistributedDataParallel<Mlp>>(mlp, *replicas);
    way->optimizer = std::make_unique<AdamW>(mlp->parameters(), Adam());
    way->state = StateOf(*mlp, *way->optimizer, mesh);
  }
  way->wrapper = ddp;
  way->backward = ddp == nullptr ? BackwardOf(mlp) : BackwardOf(ddp);
  return way;
}

std::vector<std::string> Ways() {
  const std::string n = std::to_string(world->size());
  std::vector<std::string> ways = {
      "single",          "ddp:replicate=" + n, "zero1:replicate=" + n,  "zero2:replicate=" + n,
      "fsdp:shard=" + n, "ddp:tensor=" + n,    "torchshard:tensor=" + n};
  if (world->size() <= 5) ways.push_back("pipeline:pipeline=" + n);  // as many layers
  if (world->size() % 2 != 0 || world->size() < 4) return ways;
  const std::string half = std::to_string(world->size() / 2);
  for (const char* composed :
       {"fsdp:replicate=2,shard=", "ddp:replicate=2,tensor=", "zero1:replicate=2,tensor=", "zero2:replicate=2,tensor=",
        "fsdp:shard=2,tensor=", "pipeline:pipeline=2,tensor=", "pipeline:pipeline=2,shard="}) {
    ways.push_back(composed + half);
  }
  if (world->size() == 8) {
    ways.emplace_back("fsdp:replicate=2,shard=2,tensor=2");
    ways.emplace_back("pipeline:pipeline=2,shard=2,tensor=2");
  }
  return ways;
}

// Everything in a checkpoint, whole.
std::map<std::string, at::Tensor> WholeOf(const std::string& directory) {
  const CheckpointIndex index = CheckpointIndex::Read(directory);
  std::map<std::string, at::Tensor> whole;
  for (const auto& [name, tensor] : index.tensors()) {
    whole[name] = torch::zeros(tensor.sizes, tensor.dtype);
    LoadTensors(directory, index,
                {{.name = name, .sizes = tensor.sizes, .boxes = WholeBox(tensor.sizes), .data = whole[name]}});
  }
  return whole;
}

void ExpectPart(const at::Tensor& part, const at::Tensor& parameter, const at::Tensor& whole, const std::string& what) {
  at::Tensor own = torch::zeros(part.sizes(), part.options().requires_grad(false));
  const auto placement = Placements().OrWhole(parameter);
  if (placement->sizes().empty() && part.dim() > 0) {  // a shard of a number
    if (part.numel() > 0) own.fill_(whole.item());
  } else {
    TakeBoxes(whole, placement->boxes(), own);
  }
  EXPECT_TRUE(torch::equal(part, own)) << what << " on rank " << world->rank();
}

void ExpectHas(const Way& way, const std::map<std::string, at::Tensor>& whole, const std::string& what) {
  std::set<std::string> found;
  for (size_t i = 0; i < way.state.parameters.size(); ++i) {
    const CheckpointTensor& parameter = way.state.parameters[i];
    ExpectPart(parameter.data.detach(), parameter.data, whole.at("model." + parameter.name),
               what + ": " + parameter.name);
    if (!way.state.states[i].has_value()) continue;
    for (const auto& [key, data] : OptimizerStateOf(*way.state.optimizer, parameter.data)) {
      const std::string name = "optimizer." + parameter.name + "." + key;
      found.insert(name);
      if (key == "step") {
        EXPECT_EQ(data.item<int64_t>(), 2) << what << ": " << name;
      } else {
        ExpectPart(data, parameter.data, whole.at(name), what + ": " + name);
      }
    }
  }
  const auto& states = way.state.states;
  const bool steps = std::any_of(states.begin(), states.end(), [](const auto& state) { return state.has_value(); });
  EXPECT_EQ(found.empty(), !steps) << what;
}

using MeshCheckpoints = Checkpoints;

TEST_F(MeshCheckpoints, CheckpointsMoveBetweenAnyTwoWaysOfTraining) {
  const std::vector<std::string> ways = Ways();
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto way = Make(ways[i]);
    if (way == nullptr) continue;
    way->Train();
    SaveTrainingState(*way->group, At(std::to_string(i)), way->state, {{"step", "2"}});
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
  std::vector<std::map<std::string, at::Tensor>> saved;
  for (size_t i = 0; i < ways.size(); ++i) {
    saved.push_back(WholeOf(At(std::to_string(i))));
    ASSERT_EQ(saved.back().size(), saved.front().size()) << ways[i];
    for (const auto& [name, tensor] : saved.back()) {  // every way has trained alike
      EXPECT_TRUE(torch::allclose(tensor, saved.front().at(name), 1e-3, 1e-4)) << ways[i] << ": " << name;
    }
  }
  for (const std::string& to : ways) {
    for (size_t from = 0; from < ways.size(); ++from) {
      const auto way = Make(to);
      if (way == nullptr) continue;
      LoadTrainingState(*way->group, At(std::to_string(from)), way->state);
      ExpectHas(*way, saved[from], ways[from] + " to " + to);
    }
  }
}

// From every way to every other.
TEST_F(MeshCheckpoints, ARankReadsLittleMoreThanItKeeps) {
  const Sizes sizes = {.tokens = 250, .width = 120, .hidden = 334, .out = 200};
  const auto kept = [](const std::vector<CheckpointTensor>& tensors) {
    return std::accumulate(tensors.begin(), tensors.end(), 0.0, [](double sum, const CheckpointTensor& tensor) {
      return sum + static_cast<double>(tensor.data.nbytes());
    });
  };
  const std::vector<std::string> ways = Ways();
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto way = Make(ways[i], sizes);
    if (way == nullptr) continue;
    way->Train();
    SaveTrainingState(*way->group, At(std::to_string(i)), way->state, {});
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
  for (size_t to = 0; to < ways.size(); ++to) {
    for (size_t from = 0; from < ways.size(); ++from) {
      const auto way = Make(ways[to], sizes);
      if (way == nullptr) continue;
      LoadTrainingState(*way->group, At(std::to_string(from)), way->state);  // makes the optimizer's state
      const std::vector<CheckpointTensor> own = CheckpointTensorsOf(way->state);
      const auto read = LoadTensors(At(std::to_string(from)), CheckpointIndex::Read(At(std::to_string(from))), own);
      EXPECT_LE(static_cast<double>(read), 1.1 * kept(own)) << ways[from] << " to " << ways[to];
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
