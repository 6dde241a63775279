// Memory savings that do not change results: activation checkpointing, small types with float32 copies, split state.
#include <cstdio>
#include <functional>
#include <memory>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/model_memory.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/transfer/broadcast.h"
#include "tests/trainer/noisy_stack.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

TEST(ActivationCheckpoint, ComputesAgainWithTheSameRandomNumbers) {
  Noisy plain, again;
  const at::Tensor x = InputOf(0).requires_grad_(), y = InputOf(0).requires_grad_();
  torch::manual_seed(3);
  (plain.forward(x) * torch::rand({6, 4})).sum().backward();
  torch::manual_seed(3);
  (checkpoint([&](const at::Tensor& in) { return again.forward(in); }, y) * torch::rand({6, 4})).sum().backward();
  EXPECT_EQ(again.calls, 2);
  EXPECT_TRUE(torch::equal(x.grad(), y.grad()));
  for (size_t i = 0; i < plain.parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(plain.parameters()[i].grad(), again.parameters()[i].grad())) << i;
  }
  const at::Tensor after = torch::rand({3});  // as if nothing had been drawn again
  torch::manual_seed(3);
  plain.forward(x);
  torch::rand({6, 4});
  EXPECT_TRUE(torch::equal(after, torch::rand({3})));
}

TEST(ActivationCheckpoint, TakesAndGivesSeveralTensors) {
  const at::Tensor a = torch::ones({2}).requires_grad_(), b = torch::full({2}, 3.0).requires_grad_();
  const auto [sum, product, size] =
      checkpoint([](const at::Tensor& x, const at::Tensor& y,
                    double factor) { return std::make_tuple((x + y) * factor, x * y, torch::tensor(x.numel())); },
                 a, b, 2.0);
  EXPECT_FALSE(size.requires_grad());
  (sum.sum() + product.sum()).backward();
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({2}, 5.0)));
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({2}, 3.0)));
  const at::Tensor c = torch::ones({2}).requires_grad_();
  const at::Tensor out = checkpoint([](const at::Tensor& x) { return x * 2; }, c);
  EXPECT_THROW(torch::autograd::grad({out.sum()}, {c}), c10::Error);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint([](const at::Tensor& x) { return x * 2; }, c).requires_grad());
}

TEST(ActivationCheckpoint, KeepsRunningStatisticsUnderDataParallel) {
  auto plain = PlainStack(), saving = CheckpointedStack();
  DistributedDataParallel<Stack> plain_ddp(plain, *world), saving_ddp(saving, *world);
  torch::optim::SGD plain_sgd(plain->parameters(), 0.1), saving_sgd(saving->parameters(), 0.1);
  TrainNoisy(plain_ddp, plain_sgd);
  TrainNoisy(saving_ddp, saving_sgd);
  ExpectBits(saving->parameters(), plain->parameters());
  ExpectBits(saving->buffers(), plain->buffers());
  const TrainingState state = StateOf(*saving, saving_sgd, *world);
  EXPECT_EQ(state.parameters.front().name, "block0.first.weight");
}

FullyShardedDataParallelOptions InType(bool small) {
  FullyShardedDataParallelOptions options;
  if (small) options.mixed_precision.param_dtype = torch::kBFloat16;
  if (small) options.mixed_precision.reduce_dtype = torch::kFloat32;
  return options;
}

TEST(ActivationCheckpoint, WorksWithinAndAroundFsdpUnits) {
  using Unit = FullyShardedDataParallel<Noisy>;
  using SavingUnit = FullyShardedDataParallel<CheckpointWrapper<Noisy>>;
  const auto train = [](const Stack::Call& call, bool small_type) {
    const FullyShardedDataParallelOptions options = InType(small_type);
    const auto model = std::make_shared<FullyShardedDataParallel<Stack>>(
        std::make_shared<Stack>(call, /*statistics=*/!small_type), *world, options);
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    TrainNoisy(*model, optimizer);
    for (const auto& unit : model->root().units()) EXPECT_TRUE(unit->sharded());
    return Copies(model->parameters());
  };
  for (const bool small_type : {false, true}) {
    const FullyShardedDataParallelOptions options = InType(small_type);
    const auto plain =
        train([&](std::shared_ptr<Noisy> noisy) { return Called(std::make_shared<Unit>(noisy, *world, options)); },
              small_type);
    const auto within = train(
        [&](std::shared_ptr<Noisy> noisy) {
          return Called(
              std::make_shared<SavingUnit>(std::make_shared<CheckpointWrapper<Noisy>>(noisy), *world, options));
        },
        small_type);
    ExpectBits(within, plain);
    const auto around = train(
        [&](std::shared_ptr<Noisy> noisy) {
          return Called(std::make_shared<CheckpointWrapper<Unit>>(std::make_shared<Unit>(noisy, *world, options)));
        },
        small_type);
    ExpectBits(around, plain);
  }
}

TEST(Autocast, AutocastComputesInASmallTypeAndNests) {
  const at::Tensor x = torch::randn({4, 4}), w = torch::randn({4, 4}).requires_grad_();
  const auto type = [&] { return torch::mm(x, w).scalar_type(); };
  EXPECT_EQ(type(), torch::kFloat32);
  {
    const Autocast autocast(at::kCPU);
    EXPECT_EQ(type(), torch::kBFloat16);
    {
      const Autocast off(at::kCPU, std::nullopt, false);
      EXPECT_EQ(type(), torch::kFloat32);
    }
    EXPECT_EQ(type(), torch::kBFloat16);
    // Recomputed in backward, outside the guard, in the same type; weights cast without a graph are not found again.
    const at::Tensor saved = checkpoint([&](const at::Tensor& in) { return torch::mm(in, w); }, x);
    EXPECT_EQ(saved.scalar_type(), torch::kBFloat16);
    const at::Tensor direct = torch::mm(x, w);
    EXPECT_TRUE(direct.requires_grad());
    saved.sum().backward();
    const at::Tensor grad = w.grad().clone();
    w.mutable_grad() = at::Tensor();
    direct.sum().backward();
    EXPECT_TRUE(torch::equal(grad, w.grad()));
  }
  EXPECT_EQ(type(), torch::kFloat32);
  EXPECT_THROW(Autocast(at::kCPU, torch::kFloat16), c10::Error);
  EXPECT_THROW(Autocast(at::kMeta), c10::Error);
}

TEST(GradScaler, SkipsStepsWithInfinitiesAndAdjustsTheScale) {
  auto net = std::make_shared<Net>();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto step = [&](bool infinite) {
    optimizer.zero_grad();
    scaler.scale(net->forward(InputOf(0)).pow(2).mean()).backward();
    if (infinite) net->parameters()[1].mutable_grad()[0] = std::numeric_limits<float>::infinity();
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  };
  const auto before = Copies(net->parameters());
  EXPECT_FALSE(step(true));
  ExpectBits(net->parameters(), before);
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_TRUE(step(false));
  EXPECT_EQ(scaler.get_scale(), 4);
  GradScaler resumed({.growth_interval = 2});
  resumed.load_state_dict(scaler.state_dict());
  EXPECT_TRUE(step(false));
  EXPECT_EQ(scaler.get_scale(), 8) << "after growth_interval steps";
  EXPECT_EQ(resumed.get_scale(), 4);
  EXPECT_THROW(resumed.load_state_dict({}), c10::Error);
  scaler.unscale_(optimizer);
  EXPECT_THROW(scaler.unscale_(optimizer), c10::Error);
  EXPECT_EQ(scaler.found_inf(optimizer), std::optional<bool>(false));
  scaler.step(optimizer);
  EXPECT_THROW(scaler.step(optimizer), c10::Error);
  scaler.update(2.0);
  EXPECT_EQ(scaler.found_inf(optimizer), std::nullopt);
  EXPECT_EQ(scaler.get_scale(), 2);
  EXPECT_THROW(scaler.update(), c10::Error);
}

TEST(GradScaler, RefusesStepsWithoutGradientsAndScalesThatAreNoFloat32) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  GradScaler scaler;
  EXPECT_THROW(scaler.step(optimizer), c10::Error);
  EXPECT_THROW(scaler.update(), c10::Error);
  EXPECT_THROW(scaler.update(1e39), c10::Error);
  EXPECT_THROW(GradScaler({.init_scale = 1e39}), c10::Error);
  scaler.update(0.1);
  EXPECT_EQ(scaler.get_scale(), static_cast<double>(0.1f));
  const at::Tensor loss = torch::full({}, 2.0, torch::kBFloat16);
  EXPECT_EQ(scaler.scale(loss).scalar_type(), torch::kFloat);
}

TEST(GradScaler, UnscaledGradientsEqualThoseWithoutAScale) {
  auto net = std::make_shared<Net>();
  const auto gradients = [&](GradScaler& scaler) {
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    optimizer.zero_grad();
    scaler.scale(net->forward(InputOf(0)).pow(2).mean()).backward();
    scaler.unscale_(optimizer);
    std::vector<at::Tensor> grads;
    for (const auto& parameter : net->parameters()) grads.push_back(parameter.grad().clone());
    return grads;
  };
  GradScaler scaled, disabled({.enabled = false});
  ExpectBits(gradients(scaled), gradients(disabled));  // a power of two
}

// An infinity in the shard of one rank: all skip.
TEST(GradScaler, TheScalerAgreesOverShards) {
  auto model = std::make_shared<FullyShardedDataParallel<Net>>(std::make_shared<Net>(), *world);
  Adam optimizer(model->parameters(), AdamOptions(0.1));
  GradScaler scaler({}, {world.get()});
  for (const bool infinite : {true, false}) {
    optimizer.zero_grad();
    scaler.scale(model->forward(InputOf(world->rank())).pow(2).mean()).backward();
    if (infinite && world->rank() == 0) {  // the last may have no rows
      for (auto& parameter : model->parameters()) parameter.mutable_grad().fill_(std::nan(""));
    }
    EXPECT_EQ(scaler.step(optimizer), !infinite) << world->rank();
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 32768);
}

// Shards that are replicated: an infinite gradient of one rank is in the average of a shard of every replica, so all
// ranks skip, also when infinities are shared among the shards only. One that comes after averaging is nobody else's
// and needs both groups.
TEST(GradScaler, TheScalerAgreesOverReplicasOfShards) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  comm::Communicator *shard = FsdpRanksOf(**mesh).shard, *replicate = FsdpRanksOf(**mesh).replicate;
  enum class When { kNever, kInTheLoss, kAfterAveraging };
  for (const bool over_world : {false, true}) {
    options.reduce_over_world = over_world;
    auto model = std::make_shared<FullyShardedDataParallel<Net>>(std::make_shared<Net>(), **mesh, options);
    Adam optimizer(model->parameters(), AdamOptions(0.1));
    GradScaler among_shards({}, {shard}), among_all({}, {shard, replicate});
    const auto step = [&](GradScaler& scaler, When when) {
      optimizer.zero_grad();
      const bool mine = world->rank() == 1;
      at::Tensor loss = model->forward(InputOf(world->rank())).pow(2).mean();
      if (mine && when == When::kInTheLoss) loss = loss * std::numeric_limits<float>::infinity();
      scaler.scale(loss).backward();
      if (mine && when == When::kAfterAveraging) {
        for (auto& parameter : model->parameters()) parameter.mutable_grad().fill_(std::nan(""));
      }
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      return stepped;
    };
    const auto before = Copies(model->parameters());
    EXPECT_FALSE(step(among_shards, When::kInTheLoss)) << world->rank();
    EXPECT_EQ(among_shards.get_scale(), 32768);
    EXPECT_FALSE(step(among_all, When::kAfterAveraging)) << world->rank();
    EXPECT_EQ(among_all.get_scale(), 32768);
    ExpectBits(Copies(model->parameters()), before);
    EXPECT_TRUE(step(among_shards, When::kNever));
    EXPECT_TRUE(step(among_all, When::kNever));
  }
}

TEST(MasterWeights, MasterWeightsKeepWhatSmallTypesWouldLose) {
  auto parameter = torch::ones({4}, torch::kBFloat16).requires_grad_();
  MasterWeights<torch::optim::SGD> optimizer({parameter}, torch::optim::SGDOptions(1e-3));
  for (int step = 0; step < 20; ++step) {  // 1 - 1e-3 is 1 in bfloat16
    parameter.mutable_grad() = torch::ones_like(parameter);
    optimizer.step();
  }
  EXPECT_NEAR(optimizer.MasterOf(parameter)[0].item<float>(), 0.98, 1e-5);
  EXPECT_TRUE(torch::equal(parameter, torch::full({4}, 0.98, torch::kBFloat16)));
  EXPECT_TRUE(parameter.grad().defined()) << "gradients stay until zero_grad";
  EXPECT_THROW(optimizer.MasterOf(torch::ones({1})), c10::Error);
}

// An optimizer made before the wrapper has copied each rank's own weights, and steps rank 0's all the same.
TEST(MasterWeights, MasterWeightsFollowBroadcastsOfDataParallel) {
  using torch::optim::SGD;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Net&)>;
  const torch::optim::SGDOptions options(0.05);
  const auto train = [](const Make& make, bool before) {
    auto model = std::make_shared<Net>();
    model->to(torch::kBFloat16);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (before) optimizer = make(*model);
    DistributedDataParallel<Net> ddp(model, *world);
    if (!before) optimizer = make(*model);
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      ddp.forward(InputOf(world->rank(), step).to(torch::kBFloat16)).to(torch::kFloat).pow(2).mean().backward();
      optimizer->step();
    }
    return Copies(model->parameters());
  };
  const Make whole = [&](const Net& net) { return std::make_unique<MasterWeights<SGD>>(net.parameters(), options); };
  const Make split = [&](const Net& net) {
    return std::make_unique<ZeroRedundancyOptimizer<MasterWeights<SGD>>>(net.parameters(), *world, options);
  };
  const auto expected = train(whole, /*before=*/false);
  auto of_rank_0 = Copies(expected);
  BroadcastTensors(*world, of_rank_0, 0, "comparing the ranks");
  ExpectBits(expected, of_rank_0);
  ExpectBits(train(whole, /*before=*/true), expected);
  ExpectBits(train(split, /*before=*/true), expected);
}

TEST(MasterWeights, MasterWeightsFollowOthersWritesAndKeepTheRest) {
  auto parameter = torch::ones({3}, torch::kBFloat16).requires_grad_();
  MasterWeights<torch::optim::SGD> optimizer({parameter}, torch::optim::SGDOptions(1e-3));
  const auto step = [&] {
    parameter.mutable_grad() = torch::ones_like(parameter);
    optimizer.step();
  };
  step();
  const at::Tensor before = optimizer.MasterOf(parameter).detach().clone();
  {
    const torch::NoGradGuard no_grad;
    parameter[0].fill_(5);
    parameter.mul_(1);  // a write that changes nothing
  }
  const at::Tensor after = optimizer.MasterOf(parameter).detach().clone();
  EXPECT_EQ(after[0].item<float>(), 5);
  EXPECT_EQ(before[1].item<float>(), 1 - 1e-3f) << "which bfloat16 does not hold";
  EXPECT_TRUE(torch::equal(after.slice(0, 1), before.slice(0, 1)));
  {
    const torch::NoGradGuard no_grad;
    parameter[2].fill_(-2);
  }
  step();
  EXPECT_EQ(parameter[2].item<float>(), -2);
  EXPECT_EQ(optimizer.MasterOf(parameter)[2].item<float>(), -2 - 1e-3f);
}

TEST(MasterWeights, MasterWeightsAreSavedWithTheOptimizer) {
  const auto make = [] { return torch::ones({4}, torch::kBFloat16).requires_grad_(); };
  at::Tensor one = make(), two = make();
  MasterWeights<Adam> saved({one}, AdamOptions(0.01)), loaded({two}, AdamOptions(0.01));
  const auto step = [](at::Tensor& parameter, torch::optim::Optimizer& optimizer) {
    parameter.mutable_grad() = parameter.detach() * 0.5;
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step(one, saved);
  std::map<std::string, at::Tensor> state;
  for (const auto& [key, tensor] : OptimizerStateOf(saved, one)) state[key] = tensor.clone();
  EXPECT_EQ(state.count("master_weight"), 1);
  {
    const torch::NoGradGuard no_grad;
    two.copy_(one);
  }
  SetOptimizerState(loaded, two, state);
  step(one, saved);
  step(two, loaded);
  EXPECT_TRUE(torch::equal(saved.MasterOf(one), loaded.MasterOf(two)));
}

// Wide enough that a parameter more or less on a rank is less than 5 %.
struct Wide : torch::nn::Module {
  explicit Wide(at::ScalarType type) {
    for (int i = 0; i < 24; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(40, 40)));
    }
    to(type);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

at::Tensor WideInput(at::ScalarType type) { return torch::ones({2, 40}, type); }

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
ModelStateBytes MeasuredSharded(Where& where, ShardingStrategy strategy) {
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = strategy;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  const auto model =
      std::make_shared<FullyShardedDataParallel<Wide>>(std::make_shared<Wide>(torch::kFloat32), where, options);
  Adam optimizer(model->parameters(), AdamOptions(0.1));
  model->forward(WideInput(torch::kFloat32)).sum().backward();
  optimizer.step();
  return MeasureModelState(StateOf(*model, optimizer));
}

ModelStateBytes MeasuredReplicated(const std::string& mode) {
  using Zero = ZeroRedundancyOptimizer<MasterWeights<Adam>>;
  auto model = std::make_shared<Wide>(torch::kBFloat16);
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = mode != "zero2";
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<DistributedDataParallel<Wide>> wrapper;
  Zero* zero = nullptr;
  if (mode == "ddp") {
    optimizer = std::make_unique<MasterWeights<Adam>>(model->parameters(), AdamOptions(0.1));
  } else {
    auto made = std::make_unique<Zero>(model->parameters(), *world, AdamOptions(0.1),
                                       ZeroRedundancyOptimizerOptions{.allgather_bucket_bytes = 1024});
    zero = made.get();
    optimizer = std::move(made);
  }
  wrapper = mode == "zero2" ? std::make_unique<ShardedDataParallel<Wide>>(model, *zero, *world, options)
                            : std::make_unique<DistributedDataParallel<Wide>>(model, *world, options);
  wrapper->forward(WideInput(torch::kBFloat16)).sum().backward();
  optimizer->step();
  return MeasureModelState(zero != nullptr ? StateOf(*model, *zero, *world) : StateOf(*model, *optimizer, *world));
}

// This rank is one of `shards` ranks, by turns.
void ExpectNear(const std::string& mode, const ModelStateBytes& bytes, DataParallelMode kind, int shards) {
  std::vector<std::vector<int64_t>> sizes;
  for (const auto& parameter : Wide(torch::kFloat32).parameters()) sizes.push_back(parameter.sizes().vec());
  const ModelStateFormula formula = {
      .mode = kind, .shards = shards, .bytes_parameter = 2, .bytes_gradient = 2, .bytes_optimizer = 12};
  const ModelStateBytes expected = PredictModelState(sizes, formula, world->rank() % shards);
  if (world->rank() == 0) {
    std::printf("%-6s %10s of model state on rank 0, %10s by the formula\n", mode.c_str(),
                BytesText(bytes.total()).c_str(), BytesText(expected.total()).c_str());
  }
  const double tolerance = kind == DataParallelMode::kFsdp ? 0 : 0.05;  // rows are counted, owners are not
  EXPECT_NEAR(static_cast<double>(bytes.total()), static_cast<double>(expected.total()),
              tolerance * static_cast<double>(expected.total()))
      << mode << "\n"
      << ModelStateTable(sizes, formula);
}

// The table of model_memory.h, by mode, within 5 %; of shards exactly.
TEST(ModelState, MemoryOfTheModelIsWithinFivePercentOfTheFormula) {
  for (const std::string mode : {"ddp", "zero1", "zero2"}) {
    ExpectNear(mode, MeasuredReplicated(mode), DataParallelModeOf(mode), world->size());
  }
  ExpectNear("fsdp", MeasuredSharded(*world, ShardingStrategy::kFullShard), DataParallelMode::kFsdp, world->size());
  if (world->size() % 2 == 0) {
    auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
    ASSERT_TRUE(mesh.ok());
    ExpectNear("hsdp", MeasuredSharded(**mesh, ShardingStrategy::kHybridShard), DataParallelMode::kFsdp,
               world->size() / 2);
  }
  EXPECT_EQ(PredictModelState(1000, {.mode = DataParallelMode::kZero2, .shards = 4}).total(), 4000 + 12000 / 4);
  // With 5 rows the first of 4 ranks has 2, the last none; all else is spread evenly.
  const std::vector<std::vector<int64_t>> sizes = {{5, 3}, {}};
  const ModelStateFormula fsdp = {.mode = DataParallelMode::kFsdp, .shards = 4};
  EXPECT_EQ(PredictModelState(sizes, fsdp).total(), 16 * (2 * 3 + 1));
  EXPECT_EQ(PredictModelState(sizes, fsdp, 2).total(), 16 * 3);
  EXPECT_EQ(PredictModelState(sizes, fsdp, 3).total(), 0);
  EXPECT_EQ(PredictModelState(sizes, {.mode = DataParallelMode::kDdp, .shards = 4}, 3).total(), 16 * 16);
  EXPECT_THROW(DataParallelModeOf("zero4"), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
