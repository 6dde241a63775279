// Models made without memory, and initial values that no mesh changes.
#include <cmath>
#include <memory>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/state/sharded_init.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;

TEST(FsdpInit, PhiloxGivesTheNumbersOfItsAuthors) {
  constexpr uint32_t kAll = 0xffffffff;
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({kAll, kAll, kAll, kAll}, {kAll, kAll}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

InitRule Rules(const std::string& name, const std::vector<int64_t>& sizes) {
  return name == "scale" ? InitRule::Normal(2, 0.5) : LikeTorch(name, sizes);
}

TEST(FsdpInit, InitialValuesHaveTheMomentsOfTheirRule) {
  auto linear = std::make_shared<torch::nn::LinearImpl>(400, 250);
  init_parameters(*linear, 5, [](const auto&, const auto&) { return InitRule::Normal(1, 2); });
  EXPECT_NEAR(linear->weight.mean().item<double>(), 1, 0.03);  // of 100,000: deviations of 0.0063 and 0.0045
  EXPECT_NEAR(linear->weight.std().item<double>(), 2, 0.03);
  EXPECT_GT(linear->weight.max().item<double>(), 7);
  init_parameters(*linear, 5, LikeTorch);
  EXPECT_NEAR(linear->weight.std().item<double>(), 0.05 / std::sqrt(3.0), 1e-3);
  EXPECT_LE(linear->weight.abs().max().item<double>(), 0.05);
  EXPECT_TRUE(torch::equal(linear->bias, torch::zeros({250})));
  const at::Tensor before = linear->weight.detach().clone();
  init_parameters(*linear, 6, LikeTorch);
  EXPECT_FALSE(torch::equal(linear->weight, before));
}

// Whatever cuts the parameters: one process, shards of all, a mesh, units that are wrappers.
TEST(FsdpInit, InitialValuesDependOnSeedNameAndElementOnly) {
  const auto plain = Plain();
  init_parameters(*plain, 11, Rules);
  const auto expect_same = [&](Sharded& model) {
    init_parameters(model, 11, Rules);
    ExpectSame(Whole(model), plain->parameters(), /*bits=*/true);
  };
  FullyShardedDataParallelOptions options;
  options.sync_module_states = false;
  expect_same(*Shard(*world, options));
  if (world->size() % 2 != 0) return;
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  expect_same(*Shard(**mesh, options));
}

// 100 KiB and more a layer; biases and the table are small.
struct Large : Shardable<Large> {
  Large() {
    layers = register_module("layers", Sequential(Linear(4, 160), Tanh(), Linear(160, 160), Tanh(), Linear(160, 3)));
    lookup = register_parameter("lookup", torch::randn({200, 160}) * 0.5 + 1);
    table = register_buffer("table", torch::arange(12, torch::kFloat32));
    torch::nn::init::xavier_normal_(lookup);
    const torch::NoGradGuard no_grad;
    lookup[3].fill_(7);
  }
  at::Tensor call(const at::Tensor& x) { return layers->forward(x) * table[2] * (1 + lookup.mean()); }
  Sequential layers{nullptr};
  at::Tensor lookup, table;
};

std::shared_ptr<Large> MadeWithoutMemory() {
  const DeferredInit deferred;
  return std::make_shared<Large>();
}

TEST(FsdpDeferredInit, MakesModulesWithoutMemory) {
  const auto model = MadeWithoutMemory();
  const auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->layers->ptr(2));
  ASSERT_NE(layer, nullptr);
  EXPECT_FALSE(HasData(layer->weight));
  EXPECT_FALSE(HasData(model->lookup));
  EXPECT_TRUE(HasData(layer->bias));
  EXPECT_EQ(layer->weight.sizes(), (std::vector<int64_t>{160, 160}));
  EXPECT_TRUE(layer->weight.requires_grad());
  EXPECT_TRUE(torch::equal(model->table, torch::arange(12, torch::kFloat32)));
  const Large ordinary;
  EXPECT_TRUE(HasData(ordinary.lookup)) << "the guard has gone";
}

TEST(FsdpDeferredInit, NamesTensorsThatNeedValues) {
  const DeferredInit deferred;
  const at::Tensor large = torch::ones({1000, 1000});
  EXPECT_FALSE(HasData(large));
  EXPECT_FALSE(HasData(large.t().matmul(large)));
  EXPECT_FALSE(HasData(large.to(torch::kBFloat16)));
  EXPECT_EQ(torch::ones({3}).sum().item<float>(), 3);
  try {
    large.sum().item<float>();
    FAIL() << "a value from nowhere";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("needs the values"));
  }
  at::Tensor small = torch::zeros({2});
  EXPECT_THROW(small.copy_(large[0].narrow(0, 0, 2)), c10::Error);
}

// Made without memory, sharded and initialised, it trains as the same model in one process.
TEST(FsdpDeferredInit, TrainsAsASingleProcessDoes) {
  const auto expect_same = [](auto& where, const FullyShardedDataParallelOptions& options) {
    const auto plain = MadeWithoutMemory();
    materialize(*plain);
    EXPECT_TRUE(plain->lookup.isnan().all().item<bool>()) << "what nobody initialises shows";
    const auto model = MadeWithoutMemory();
    for (auto& layer : *model->layers) {
      if (!layer.ptr()->parameters().empty()) fully_shard(layer, where, options);
    }
    FullyShardedModule& shards = fully_shard(*model, where, options);
    init_parameters(*plain, 3, LikeTorch);
    init_parameters(*model, 3, LikeTorch);
    ExpectSame(Whole(shards, *model), plain->parameters(), /*bits=*/true);
    torch::optim::SGD optimizer(model->parameters(), 0.1), plain_optimizer(plain->parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
      optimizer.step();
      plain_optimizer.zero_grad();
      for (int rank = 0; rank < world->size(); ++rank) {
        (plain->forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
      }
      plain_optimizer.step();
    }
    ExpectSame(Whole(shards, *model), plain->parameters(), false);
  };
  FullyShardedDataParallelOptions on_device;
  on_device.device_id = torch::kCPU;
  expect_same(*world, {});
  expect_same(*world, on_device);
  if (world->size() % 2 != 0) return;
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  expect_same(**mesh, on_device);
}

TEST(FsdpDeferredInit, RefusesBuffersWithoutValues) {
  struct Table : torch::nn::Module {
    Table() { register_buffer("mask", torch::ones({200, 200})); }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  std::shared_ptr<Table> table;
  {
    const DeferredInit deferred;
    table = std::make_shared<Table>();
  }
  try {
    const FullyShardedDataParallel<Table> model(table, *world);
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("buffer mask was made under DeferredInit"));
  }
  std::shared_ptr<torch::nn::LinearImpl> whole;
  {
    const DeferredInit deferred;
    whole = std::make_shared<torch::nn::LinearImpl>(200, 200);
  }
  EXPECT_THROW(init_parameters(*whole, 1, LikeTorch), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
