// Checkpoints of any two ways to train: parameters and the optimizer's state move with all their bits.
#include <functional>
#include <map>
#include <set>

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
using Zero = ZeroRedundancyOptimizer<AdamW>;

enum class Layers { kTensor, kTorchShard };

// An embedding and two layers. On an axis of one rank they are ordinary ones; their names are the same in every way.
struct Mlp : torch::nn::Module {
  Mlp(Layers layers, const TensorAxis& axis) {
    if (layers == Layers::kTorchShard) {
      namespace nn = torchshard::nn;
      const auto rows = register_module("tokens", nn::ParallelEmbedding(nn::ParallelEmbeddingOptions(11, 6).dim(0)));
      const auto up = register_module("up", nn::ParallelLinear(nn::ParallelLinearOptions(6, 10).dim(1)));
      const auto down = register_module("down", nn::ParallelLinear(nn::ParallelLinearOptions(10, 5).dim(0)));
      call = [=](const at::Tensor& codes) {
        const at::Tensor hidden = torch::tanh(up->forward(rows->forward(codes)));
        torchshard::register_parallel_dim(hidden, -1);
        return down->forward(hidden);
      };
    } else {
      auto rows = register_module("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(11, 6), axis));
      auto up = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(6, 10), axis));
      auto down = register_module("down", RowParallelLinear(RowParallelLinearOptions(10, 5), axis));
      call = [=](const at::Tensor& codes) { return down->forward(torch::tanh(up->forward(rows->forward(codes)))); };
    }
    scale = register_parameter("scale", torch::ones({}));
    count = register_buffer("count", torch::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& codes) { return call(codes) * scale; }

  std::function<at::Tensor(const at::Tensor&)> call;
  at::Tensor scale, count;
};

// With values by name and element, which no way changes.
std::shared_ptr<Mlp> MakeMlp(Layers layers, const TensorAxis& axis) {
  auto mlp = std::make_shared<Mlp>(layers, axis);
  init_parameters(*mlp, 11, [](const std::string& name, const std::vector<int64_t>& sizes) {
    return sizes.size() > 1 ? LikeTorch(name, sizes) : InitRule::Constant(0.5);
  });
  return mlp;
}

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
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<void> wrapper;
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  TrainingState state;
  std::function<at::Tensor(const at::Tensor&)> forward;

  // All ranks train on the same rows, so that every way does the same but for rounding.
  void Train() {
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      const at::Tensor codes = torch::randint(11, {8}, at::detail::createCPUGenerator(step), torch::kInt64);
      forward(codes).pow(2).mean().backward();
      optimizer->step();
    }
  }
};

AdamWOptions Adam() { return AdamWOptions(0.05); }

// "single", or "how:mesh", where how is ddp, zero1, zero2, fsdp or torchshard.
std::unique_ptr<Way> Make(const std::string& name) {
  auto way = std::make_unique<Way>();
  way->name = name;
  way->group = world.get();
  const std::string how = name.substr(0, name.find(':'));
  if (how == "single") {
    way->alone = First(1);
    if (way->alone == nullptr) return nullptr;
    way->group = way->alone.get();
    way->mlp = MakeMlp(Layers::kTensor, TensorAxis());
    way->optimizer = std::make_unique<AdamW>(way->mlp->parameters(), Adam());
    way->state = StateOf(*way->mlp, *way->optimizer, *way->alone);
    way->forward = [mlp = way->mlp](const at::Tensor& codes) { return mlp->forward(codes); };
    return way;
  }
  way->mesh = init_device_mesh(*world, name.substr(how.size() + 1));
  DeviceMesh& mesh = *way->mesh;
  const TensorAxis axis = mesh.has(kTensorAxis) ? TensorAxis(mesh.axis(kTensorAxis).value()) : TensorAxis();
  if (how == "torchshard") torchshard::distributed::init_process_group(*world, mesh.size(kTensorAxis).value());
  way->mlp = MakeMlp(how == "torchshard" ? Layers::kTorchShard : Layers::kTensor, axis);
  if (how == "fsdp") {
    std::vector<std::string> data = {kShardAxis};
    if (mesh.has(kReplicateAxis)) data.emplace_back(kReplicateAxis);
    way->data = mesh.Slice(data).value();
    const auto fsdp = std::make_shared<FullyShardedDataParallel<Mlp>>(way->mlp, *way->data);
    way->module = fsdp;
    way->optimizer = std::make_unique<AdamW>(fsdp->parameters(), Adam());
    way->state = StateOf(*fsdp, *way->optimizer, mesh);
    way->forward = [fsdp](const at::Tensor& codes) { return fsdp->forward(codes); };
    return way;
  }
  way->forward = [mlp = way->mlp](const at::Tensor& codes) { return mlp->forward(codes); };
  const bool replicates = mesh.has(kReplicateAxis);
  comm::Communicator* replicas = replicates ? mesh.get_group(kReplicateAxis).value() : nullptr;
  std::shared_ptr<DistributedDataParallel<Mlp>> ddp;
  if (how == "zero1" || how == "zero2") {
    auto zero = std::make_unique<Zero>(way->mlp->parameters(), *replicas, Adam());
    ddp = how == "zero1" ? std::make_shared<DistributedDataParallel<Mlp>>(way->mlp, *replicas)
                         : std::make_shared<ShardedDataParallel<Mlp>>(way->mlp, *zero, *replicas);
    way->state = StateOf(*way->mlp, *zero, mesh);
    way->optimizer = std::move(zero);
  } else {
    if (replicates) ddp = std::make_shared<DistributedDataParallel<Mlp>>(way->mlp, *replicas);
    way->optimizer = std::make_unique<AdamW>(way->mlp->parameters(), Adam());
    way->state = StateOf(*way->mlp, *way->optimizer, mesh);
  }
  if (ddp == nullptr) return way;
  way->wrapper = ddp;
  way->forward = [ddp](const at::Tensor& codes) { return ddp->forward(codes); };
  return way;
}

std::vector<std::string> Ways() {
  const std::string n = std::to_string(world->size());
  std::vector<std::string> ways = {
      "single",          "ddp:replicate=" + n, "zero1:replicate=" + n,  "zero2:replicate=" + n,
      "fsdp:shard=" + n, "ddp:tensor=" + n,    "torchshard:tensor=" + n};
  if (world->size() % 2 != 0 || world->size() < 4) return ways;
  const std::string half = std::to_string(world->size() / 2);
  for (const char* composed : {"fsdp:replicate=2,shard=", "ddp:replicate=2,tensor=", "zero1:replicate=2,tensor=",
                               "zero2:replicate=2,tensor=", "fsdp:shard=2,tensor="}) {
    ways.push_back(composed + half);
  }
  if (world->size() == 8) ways.emplace_back("fsdp:replicate=2,shard=2,tensor=2");
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
  EXPECT_FALSE(found.empty() && way.optimizer->param_groups().front().params().empty()) << what;
}

using MeshCheckpoints = Checkpoints;

TEST_F(MeshCheckpoints, MoveBetweenAnyTwoWays) {
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

}  // namespace
}  // namespace cohort::trainer
