// Modules that are sharded where they are: against wrappers, against DistributedDataParallel, and what is refused.
#include <cstdio>
#include <memory>
#include <random>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;
using torch::optim::Adam;
using torch::optim::AdamOptions;

struct Residual : Shardable<Residual> {
  Residual() {
    up = register_module("up", Linear(4, 7));
    down = register_module("down", Linear(7, 4));
  }
  at::Tensor call(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  Linear up{nullptr}, down{nullptr};
};

// Elements of torch and of one's own, a module that is a member, and parameters of its own.
struct Mixture : Shardable<Mixture> {
  explicit Mixture(int seed = 0) {
    torch::manual_seed(seed);
    layers = register_module("layers", Sequential(Linear(4, 6), Tanh(), std::make_shared<Residual6>(), Linear(6, 4)));
    member = register_module("member", std::make_shared<Residual>());
    tail = register_module("tail", Sequential(Linear(4, 5), Tanh(), Linear(5, 3)));
    scale = register_parameter("scale", torch::full({3}, 1.5));
  }
  at::Tensor call(const at::Tensor& x) { return tail->forward(member->forward(layers->forward(x))) * scale; }

  struct Residual6 : Shardable<Residual6> {
    Residual6() { linear = register_module("linear", Linear(6, 6)); }
    at::Tensor call(const at::Tensor& x) { return x + torch::tanh(linear(x)); }
    Linear linear{nullptr};
  };
  Sequential layers{nullptr}, tail{nullptr};
  std::shared_ptr<Residual> member;
  at::Tensor scale;
};

// Every element of `layers` that has parameters, the member, `tail` as one, and the rest. `where` is a Communicator or
// a DeviceMesh.
template <typename Where>
FullyShardedModule& ShardInPlace(Mixture& model, Where& where, const FullyShardedDataParallelOptions& options = {}) {
  for (auto& layer : *model.layers) {
    if (!layer.ptr()->parameters().empty()) fully_shard(layer, where, options);
  }
  fully_shard(*model.member, where, options);
  fully_shard(*model.tail, where, options);
  return fully_shard(model, where, options);
}

std::vector<at::Tensor> TrainedReplicated(comm::Communicator& group) {
  auto model = std::make_shared<Mixture>();
  DistributedDataParallel<Mixture> ddp(model, group);
  Adam optimizer(model->parameters(), AdamOptions(0.02));
  Train(ddp, optimizer);
  std::vector<at::Tensor> copies;
  for (const auto& parameter : model->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

std::vector<std::string> NamesOf(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

TEST(FsdpInPlace, GivesTheBitsOfDdp) {
  const auto group = OrderInvariantWorld();
  const auto expected = TrainedReplicated(*group);
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = strategy;
    auto model = std::make_shared<Mixture>(world->rank());  // rank 0's values go to all
    FullyShardedModule& shards = ShardInPlace(*model, *group, options);
    EXPECT_EQ(shards.root().units().size(), 6u);  // three elements, member, tail, the rest
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    Train(*model, optimizer);
    for (const auto& unit : shards.root().units()) EXPECT_TRUE(unit->sharded());
    ExpectSame(Whole(shards, *model), expected, WorldIsPowerOfTwo());
  }
}

TEST(FsdpInPlace, ChangesNoNameAndNoMember) {
  const Mixture plain;
  auto model = std::make_shared<Mixture>();
  const at::Tensor weight = model->tail->parameters().front();
  FullyShardedModule& shards = ShardInPlace(*model, *world);
  EXPECT_EQ(NamesOf(*model), NamesOf(plain));
  EXPECT_TRUE(model->tail->parameters().front().is_same(weight));
  EXPECT_EQ(model->layers->children().size(), 4u);
  EXPECT_NE(std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->layers->children().front()), nullptr);
  const auto parts = shards.sharded_parameters();
  ASSERT_EQ(parts.size(), plain.parameters().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].name, NamesOf(plain)[i]);
    EXPECT_EQ(parts[i].sizes, plain.parameters()[i].sizes().vec());
  }
  model->eval();
  EXPECT_FALSE(model->layers->children().front()->is_training());
}

// The same model, sharded in place over a mesh, computes what one process does.
TEST(FsdpInPlace, TrainsOverAMeshAsASingleProcessDoes) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  auto model = std::make_shared<Mixture>();
  FullyShardedModule& shards = ShardInPlace(*model, **mesh);
  Adam optimizer(model->parameters(), AdamOptions(0.02));
  auto plain = std::make_shared<Mixture>();
  Adam plain_optimizer(plain->parameters(), AdamOptions(0.02));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    const double norm = shards.clip_grad_norm_(0.05).item<double>();
    optimizer.step();
    plain_optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (plain->forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.05), norm, 1e-4 * norm);
    plain_optimizer.step();
  }
  ExpectSame(Whole(shards, *model), plain->parameters(), false, 1e-3);
}

// A Sequential may be the outermost module, and a wrapper the outermost of what is sharded in place.
TEST(FsdpInPlace, ServesASequentialAloneAndWithinAWrapper) {
  const auto make = [] {
    torch::manual_seed(9);
    return Sequential(Linear(4, 6), Tanh(), Linear(6, 3));
  };
  struct Holder : torch::nn::Module {
    explicit Holder(Sequential layers) : layers(register_module("layers", std::move(layers))) {}
    at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
    Sequential layers;
  };
  Sequential alone = make(), within = make(), plain = make();
  fully_shard(*alone->begin(), *world);
  FullyShardedModule& shards = fully_shard(*alone, *world);
  fully_shard(*(within->begin() + 2), *world);
  FullyShardedDataParallel<Holder> wrapper(std::make_shared<Holder>(within), *world);
  DistributedDataParallel<Holder> ddp(std::make_shared<Holder>(plain), *world);
  torch::optim::SGD alone_sgd(alone->parameters(), 0.1), within_sgd(within->parameters(), 0.1);
  torch::optim::SGD plain_sgd(plain->parameters(), 0.1);
  Train(*alone, alone_sgd);
  Train(wrapper, within_sgd);
  Train(ddp, plain_sgd);
  ExpectSame(Whole(shards, *alone), plain->parameters(), false);
  ExpectSame(Whole(wrapper), plain->parameters(), false);
}

TEST(FsdpInPlace, ComputesInSmallTypesAndKeepsFloat32) {
  FullyShardedDataParallelOptions options;
  options.mixed_precision = {
      .param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32, .output_dtype = torch::kFloat32};
  auto model = std::make_shared<Mixture>(), exact = std::make_shared<Mixture>();
  ShardInPlace(*model, *world, options);
  ShardInPlace(*exact, *world);
  for (int step = 0; step < 2; ++step) {
    for (const auto& each : {model, exact}) {
      for (auto& parameter : each->parameters()) parameter.mutable_grad() = at::Tensor();
      const at::Tensor output = each->forward(InputOf(world->rank(), step));
      EXPECT_EQ(output.scalar_type(), torch::kFloat32);
      output.pow(2).mean().backward();
    }
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const at::Tensor parameter = model->parameters()[i];
      EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
      EXPECT_TRUE(torch::allclose(parameter.grad(), exact->parameters()[i].grad(), 0.1, 0.02)) << i << " step " << step;
    }
  }
}

// The random numbers that every rank draws alike.
std::mt19937 SharedRandom() {
  uint32_t seed = std::random_device()();
  EXPECT_TRUE(world->Broadcast(comm::Buffer(reinterpret_cast<uint8_t*>(&seed), sizeof seed), 0).Wait().ok());
  if (world->rank() == 0) std::printf("seed %u\n", seed);
  return std::mt19937(seed);
}

FullyShardedDataParallelOptions AnyOptions(std::mt19937& random, int shards) {
  FullyShardedDataParallelOptions options;
  if (random() % 2 == 0) options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.forward_prefetch = random() % 2 == 0;
  if (random() % 2 == 0) options.backward_prefetch = BackwardPrefetch::kNone;
  const int ranks = 1 + static_cast<int>(random() % static_cast<unsigned>(shards));
  if (shards % ranks == 0 && random() % 2 == 0) options.reshard_after_forward = ranks;
  return options;
}

// Any modules are units, each with any options: what is trained is the same.
TEST(FsdpInPlace, TrainsTheSameHoweverItIsCut) {
  std::mt19937 random = SharedRandom();
  const auto group = OrderInvariantWorld();
  const auto expected = TrainedReplicated(*group);
  for (int trial = 0; trial < 12; ++trial) {
    SCOPED_TRACE(trial);
    auto model = std::make_shared<Mixture>();
    const auto cut = [&](auto& module) {
      if (random() % 2 == 0) fully_shard(module, *group, AnyOptions(random, group->size()));
    };
    for (auto& layer : *model->layers) cut(layer);
    cut(*model->layers);
    cut(*model->member);
    for (auto& layer : *model->tail) cut(layer);
    cut(*model->tail);
    FullyShardedModule& shards = fully_shard(*model, *group, AnyOptions(random, group->size()));
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    Train(*model, optimizer);
    ExpectSame(Whole(shards, *model), expected, WorldIsPowerOfTwo());
  }
}

TEST(FsdpInPlace, RefusesByNameModulesThatItCanNotServe) {
  const auto refused = [](const auto& shard) -> std::string {
    try {
      shard();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  Linear linear(4, 4);
  EXPECT_THAT(refused([&] { fully_shard(*linear, *world); }), HasSubstr("LinearImpl can't be sharded where it is"));
  auto model = std::make_shared<Mixture>();
  ShardInPlace(*model, *world);
  EXPECT_THAT(refused([&] { fully_shard(*model, *world); }), HasSubstr("sharded already"));
  EXPECT_THAT(refused([&] { fully_shard(*model->layers->begin(), *world); }), HasSubstr("sharded already"));
  EXPECT_THAT(refused([&] { DistributedDataParallel<Mixture>(model, *world); }), HasSubstr("module itself is sharded"));
  auto outside_in = std::make_shared<Mixture>();
  fully_shard(*outside_in, *world);
  EXPECT_THAT(refused([&] { fully_shard(*outside_in->member, *world); }), HasSubstr("Residual are sharded already"));
  EXPECT_THAT(refused([&] { fully_shard(*outside_in->tail, *world); }), HasSubstr("shard from the inside out"));
  for (auto& layer : *outside_in->layers) {
    EXPECT_THAT(refused([&] { fully_shard(layer, *world); }), HasSubstr("shard from the inside out"));
  }
  outside_in->forward(InputOf(world->rank(), 0)).sum().backward();  // which nothing of it has hurt
  Sequential empty;
  EXPECT_THAT(refused([&] { fully_shard(*empty, *world); }), HasSubstr("without elements"));
}

}  // namespace
}  // namespace cohort::trainer
