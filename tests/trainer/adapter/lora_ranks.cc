// Adapters on several ranks: under DDP, FSDP and tensor parallelism they train as in one process that sees all batches.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cohort/trainer/adapter/lora.h"
#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/parallelize/tensor_plan.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "cohort/trainer/state/model_memory.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/layers.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

struct Adaptable : torch::nn::Module {
  Adaptable() {
    up = register_module("up", nn::Linear(4, 6));
    down = register_module("down", nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::tanh(up(x))); }
  nn::Linear up{nullptr}, down{nullptr};
};

// r is below the number of ranks where there are more than two: some ranks then have no rows of A.
LoraConfig Config() { return {.r = 2, .lora_alpha = 4}; }

std::shared_ptr<Adaptable> Seeded() {
  torch::manual_seed(3);
  return std::make_shared<Adaptable>();
}

template <typename Forward>
void Train(const Forward& forward, const Lora& lora, const std::function<at::Tensor(int)>& input) {
  torch::optim::AdamW optimizer(lora.parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    forward(input(step)).pow(2).mean().backward();
    optimizer.step();
  }
}

at::Tensor Mine(int step) { return InputOf(world->rank(), step); }
at::Tensor All(int step) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < world->size(); ++rank) inputs.push_back(InputOf(rank, step));
  return torch::cat(inputs);
}

// The adapters after training in one process, by name.
std::map<std::string, at::Tensor> Expected() {
  const auto model = Seeded();
  const Lora lora(*model, Config());
  Train([&](const at::Tensor& x) { return model->forward(x); }, lora, All);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, parameter] : lora.named_parameters()) parameters.emplace(name, parameter.detach());
  return parameters;
}

// Rank 0 makes a folder, and all ranks of the job learn its name.
std::string SharedFolder() {
  std::string name = testing::TempDir() + "lora_ranks.XXXXXX";
  if (world->rank() == 0) {
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
  }
  EXPECT_TRUE(world->Broadcast(comm::Buffer(name.data(), static_cast<int64_t>(name.size())), 0).Wait().ok());
  return name;
}

// Expects the files, which are put together from all ranks, to hold what one process would have trained.
void ExpectSaved(const Lora& lora, const std::map<std::string, at::Tensor>& expected) {
  const std::string folder = SharedFolder();
  save_pretrained(lora, *world, folder);
  const auto saved = ReadSafetensors(folder + "/adapter_model.safetensors");
  EXPECT_EQ(saved.size(), expected.size());
  for (const auto& [name, values] : expected) {
    EXPECT_TRUE(torch::allclose(saved.at("base_model.model." + name), values, 1e-4, 1e-6)) << name;
  }
  EXPECT_TRUE(world->Barrier().Wait().ok());
  if (world->rank() == 0) RemoveTree(folder);
}

TEST(LoraRanks, AdaptersTrainUnderDdpAsInOneProcess) {
  const auto model = Seeded();
  const Lora lora(*model, Config());
  DistributedDataParallel<Adaptable> ddp(model, *world);
  Train([&](const at::Tensor& x) { return ddp.forward(x); }, lora, Mine);
  ExpectSaved(lora, Expected());
}

TEST(LoraRanks, AdaptersTrainUnderFsdpAsInOneProcess) {
  const auto model = Seeded();
  const Lora lora(*model, Config());
  FullyShardedDataParallel<Adaptable> fsdp(model, *world);
  Train([&](const at::Tensor& x) { return fsdp.forward(x); }, lora, Mine);
  ExpectSaved(lora, Expected());
}

// Parameters, gradients and Adam's two averages of the adapters; of the base its parameters alone.
TEST(LoraRanks, AdaptersTakeTheMemoryOfTheFormula) {
  for (const bool sharded : {false, true}) {
    const auto model = Seeded();
    const Lora lora(*model, Config());
    std::vector<std::vector<int64_t>> adapters, base;
    for (const at::Tensor& parameter : model->parameters()) {
      (parameter.requires_grad() ? adapters : base).push_back(parameter.sizes().vec());
    }
    std::unique_ptr<FullyShardedDataParallel<Adaptable>> fsdp;
    std::unique_ptr<DistributedDataParallel<Adaptable>> ddp;
    if (sharded) {
      fsdp = std::make_unique<FullyShardedDataParallel<Adaptable>>(model, *world);
    } else {
      ddp = std::make_unique<DistributedDataParallel<Adaptable>>(model, *world);
    }
    torch::optim::AdamW optimizer(lora.parameters(), torch::optim::AdamWOptions(0.05));
    (sharded ? fsdp->forward(Mine(0)) : ddp->forward(Mine(0))).pow(2).mean().backward();
    optimizer.step();
    const ModelStateBytes bytes =
        MeasureModelState(sharded ? StateOf(*fsdp, optimizer) : StateOf(*model, optimizer, *world));
    const ModelStateFormula formula = {.mode = sharded ? DataParallelMode::kFsdp : DataParallelMode::kDdp,
                                       .shards = world->size()};
    const ModelStateBytes trained = PredictModelState(adapters, formula, world->rank());
    const ModelStateBytes frozen = PredictModelState(base, formula, world->rank());
    EXPECT_EQ(bytes.parameters, trained.parameters + frozen.parameters) << sharded;
    EXPECT_EQ(bytes.gradients, trained.gradients) << sharded;
    EXPECT_EQ(bytes.optimizer, trained.optimizer) << sharded;
  }
}

// A forward pass without a backward pass leaves parameters whole. Files and loading are about this rank's parts.
TEST(LoraRanks, AdaptersAreSavedAndLoadedAfterAForwardPassUnderFsdp) {
  const std::string folder = SharedFolder();
  const auto source = Seeded(), target = Seeded();
  Lora saved(*source, Config());
  FullyShardedDataParallel<Adaptable> from(source, *world);
  Train([&](const at::Tensor& x) { return from.forward(x); }, saved, Mine);
  from.forward(Mine(7));
  save_pretrained(saved, *world, folder);
  Lora loaded(*target, Config());
  FullyShardedDataParallel<Adaptable> to(target, *world);
  to.forward(Mine(7));
  load_adapter(loaded, folder);
  EXPECT_TRUE(torch::equal(to.forward(All(7)), from.forward(All(7))));
  ExpectSaved(saved, Expected());
  ExpectSaved(loaded, Expected());
  {
    const SummonFullParams whole(to);
    if (world->size() > 1) {
      EXPECT_THROW(load_adapter(loaded, folder), c10::Error);
      EXPECT_THROW(save_pretrained(loaded, *world, folder), c10::Error);
    }
  }
  ExpectSaved(loaded, Expected());
  EXPECT_TRUE(world->Barrier().Wait().ok());
  if (world->rank() == 0) RemoveTree(folder);
}

std::string WhatOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

// One rank's files are not there, or others': all ranks say so, soon, and none has loaded anything.
TEST(LoraRanks, AdaptersAreLoadedOnAllRanksOrOnNone) {
  const int last = world->size() - 1;
  const std::string folder = SharedFolder();
  const std::string mine = folder + "/" + std::to_string(world->rank());
  const auto model = Seeded();
  Lora lora(*model, Config());
  save_pretrained(lora, mine);
  Train([&](const at::Tensor& x) { return model->forward(x); }, lora, All);
  std::vector<at::Tensor> before;
  for (const at::Tensor& each : lora.parameters()) before.push_back(each.detach().clone());
  const auto expect_refused = [&](const std::string& directory, const std::string& why) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(WhatOf([&] { load_adapter(lora, *world, directory); }), ::testing::HasSubstr(why));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(lora.parameters()[i], before[i])) << why;
  };
  expect_refused(world->rank() == last ? folder + "/none" : mine,
                 "load_adapter: rank " + std::to_string(last) + ": can't open " + folder + "/none/adapter_config.json");
  if (last > 0) {
    if (world->rank() == last) save_pretrained(lora, mine);
    expect_refused(mine, "give all ranks the same files");
  }
  load_adapter(lora, *world, folder + "/0");
  EXPECT_FALSE(torch::equal(lora.parameters().front(), before.front()));
  EXPECT_TRUE(world->Barrier().Wait().ok());
  if (world->rank() == 0) RemoveTree(folder);
}

TEST(LoraRanks, OneProcessOfSeveralDoesNotSaveAdapters) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has everything";
  const auto model = Seeded();
  Lora lora(*model, Config());
  FullyShardedDataParallel<Adaptable> fsdp(model, *world);
  const std::string folder = testing::TempDir() + "lora_ranks_alone." + std::to_string(world->rank());
  EXPECT_THROW(save_pretrained(lora, folder), c10::Error);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// Sizes divide by no number of ranks but 1.
struct SplitNet : torch::nn::Module {
  explicit SplitNet(const TensorAxis& chosen) : axis(chosen) {
    torch::manual_seed(3);
    tokens = register_module("tokens", VocabParallelEmbedding(VocabParallelEmbeddingOptions(11, 6), axis));
    up = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(6, 7), axis));
    down = register_module("down", RowParallelLinear(RowParallelLinearOptions(7, 5), axis));
  }
  at::Tensor forward(const at::Tensor& codes) {
    axis.set_sequence_length(codes.size(axis.options().sequence_dim));
    return down(torch::tanh(up(tokens(codes))));
  }
  TensorAxis axis;
  VocabParallelEmbedding tokens{nullptr};
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};

at::Tensor Codes(int step) { return torch::arange(7 * 3).add(step).remainder(11).view({7, 3}); }

// Trains with a loss whose terms add up over the parts of the sequence.
template <typename Model>
void TrainSplit(Model& model, const Lora& lora) {
  torch::optim::AdamW optimizer(lora.parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    set_random_place({.seed = 1, .step = step});
    model.forward(Codes(step)).pow(2).sum().backward();
    optimizer.step();
  }
}

template <typename Model>
void ExpectSplitAsInOneProcess(Model& whole, Model& split, double dropout = 0) {
  const LoraConfig config{.r = 2, .lora_alpha = 4, .lora_dropout = dropout, .target_modules = {"tokens", "up", "down"}};
  const Lora reference(whole, config);
  TrainSplit(whole, reference);
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, parameter] : reference.named_parameters()) expected.emplace(name, parameter.detach());
  Lora lora(split, config);
  TrainSplit(split, lora);
  ExpectSaved(lora, expected);
  split.eval();
  const at::Tensor unmerged = split.forward(Codes(9)).detach();
  lora.merge();
  EXPECT_TRUE(torch::allclose(split.forward(Codes(9)), unmerged, 1e-4, 1e-5));
}

TEST(LoraRanks, AdaptersTrainUnderTensorParallelismAsInOneProcess) {
  SplitNet whole((TensorAxis())), split((TensorAxis(*world)));
  ExpectSplitAsInOneProcess(whole, split);
}

TEST(LoraRanks, AdaptersTrainUnderSequenceParallelismAsInOneProcess) {
  SplitNet whole((TensorAxis())), split(TensorAxis(*world, {.sequence_parallel = true}));
  ExpectSplitAsInOneProcess(whole, split);
}

// Masks are those of one process: inputs of `up` are whole or a part of the sequence, those of `down` are some
// features.
TEST(LoraRanks, AdaptersDropTheSameInputsOfCutLayers) {
  for (const bool sequence_parallel : {false, true}) {
    SplitNet whole((TensorAxis()));
    SplitNet split(TensorAxis(*world, {.sequence_parallel = sequence_parallel, .sequence_dim = 1}));
    ExpectSplitAsInOneProcess(whole, split, /*dropout=*/0.4);
  }
}

// TorchShard's layers, cut along a dimension or whole.
struct ShardNet : torch::nn::Module {
  ShardNet(bool cut, int64_t tokens_dim) {
    namespace ts = torchshard;
    torch::manual_seed(3);
    const auto dim = [cut](int64_t chosen) { return cut ? ts::ParallelDim(chosen) : ts::ParallelDim(); };
    tokens = register_module("tokens",
                             ts::nn::ParallelEmbedding(ts::nn::ParallelEmbeddingOptions(11, 6).dim(dim(tokens_dim))));
    up = register_module("up", ts::nn::ParallelLinear(ts::nn::ParallelLinearOptions(6, 7).dim(dim(1))));
    down = register_module("down", ts::nn::ParallelLinear(ts::nn::ParallelLinearOptions(7, 5).dim(dim(0))));
  }
  at::Tensor forward(const at::Tensor& codes) {
    const at::Tensor features = up(tokens(codes)), hidden = torch::tanh(features);
    torchshard::register_parallel_dim(hidden, torchshard::get_parallel_dim(features));
    return down(hidden);
  }
  torchshard::nn::ParallelEmbedding tokens{nullptr};
  torchshard::nn::ParallelLinear up{nullptr}, down{nullptr};
};

// Layers that are cut after their adapters were made: every rank says which.
TEST(LoraRanks, LayersCutAfterTheirAdaptersAreRefused) {
  if (world->size() == 1) GTEST_SKIP() << "nothing is cut";
  struct Whole : torch::nn::Module {
    Whole() {
      torch::manual_seed(3);
      tokens = register_module("tokens", nn::Embedding(11, 6));
      up = register_module("up", nn::Linear(6, 7));
    }
    nn::Embedding tokens{nullptr};
    nn::Linear up{nullptr};
  };
  for (const auto& [layer, style] :
       TensorPlan{{"tokens", RowwiseParallel()}, {"up", ColwiseParallel()}, {"up", RowwiseParallel()}}) {
    const auto model = std::make_shared<Whole>();
    const Lora lora(*model, {.r = 2, .target_modules = {"tokens", "up"}});
    const TensorPlan plan = {{layer, style}};
    const auto compute = [&] {
      CutLayers(*model, plan, TensorAxis(*world));
      at::Tensor x = model->tokens(Codes(0));
      if (std::holds_alternative<RowwiseParallel>(plan.front().second) && layer == "up") {
        x = x.narrow(2, 0, model->up->weight.size(1));
      }
      model->up(x);
    };
    EXPECT_THAT(WhatOf(compute), ::testing::AllOf(::testing::HasSubstr(layer), ::testing::HasSubstr("Lora")));
  }
  torchshard::distributed::init_process_group(*world);
  const auto model = std::make_shared<ShardNet>(false, 0);
  const Lora lora(*model, {.r = 2, .target_modules = {"tokens"}});
  model->tokens->parallelize(0);
  EXPECT_THAT(WhatOf([&] { model->forward(Codes(0)); }), ::testing::HasSubstr("layer tokens was cut after"));
  torchshard::distributed::destroy_process_group();
}

TEST(LoraRanks, AdaptersTrainOnTorchShardsLayersAsInOneProcess) {
  torchshard::distributed::init_process_group(*world);
  for (const int64_t tokens_dim : {0, 1}) {
    ShardNet whole(false, tokens_dim), split(true, tokens_dim);
    ExpectSplitAsInOneProcess(whole, split);
  }
  torchshard::distributed::destroy_process_group();
}

}  // namespace
}  // namespace cohort::trainer
