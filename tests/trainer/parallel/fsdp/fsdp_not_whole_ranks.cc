// Code that needs every parameter whole refuses shards: each rank's rows would pass for all of them.
#include <functional>
#include <memory>
#include <string>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/state/sharded_init.h"
#include "cohort/trainer/state/training_state.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGD;

std::string RefusalOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "accepted";
}

struct Residual : Shardable<Residual> {
  Residual() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor call(const at::Tensor& x) { return x + linear(x); }
  torch::nn::Linear linear{nullptr};
};

// A mixture of shards would make a checkpoint that can be loaded: the name of the tensor and its size fit.
TEST(FsdpNotWhole, StateOfRefusesShards) {
  const auto sharded = Shard(*world);
  SGD optimizer(sharded->parameters(), 0.1);
  const auto state_of = [&](const torch::nn::Module& module) {
    return RefusalOf([&] { StateOf(module, optimizer, *world); });
  };
  const auto is_named = [](const std::string& name) {
    return AllOf(HasSubstr("StateOf: module " + name + " is sharded"), HasSubstr("StateOf(*model, optimizer)"));
  };
  EXPECT_THAT(state_of(*sharded), is_named("itself"));
  EXPECT_THAT(state_of(*sharded->module()), is_named("itself")) << "what it wraps";
  const auto with_wrapped_block = std::make_shared<Tower>([](std::shared_ptr<Block> block) {
    auto wrapped = std::make_shared<FullyShardedDataParallel<Block>>(block, *world);
    return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
  });
  EXPECT_THAT(state_of(*with_wrapped_block), is_named("block0"));
  const auto in_place = std::make_shared<Residual>();
  SGD own(in_place->parameters(), 0.1);
  EXPECT_EQ(RefusalOf([&] { StateOf(*in_place, own, *world); }), "accepted");
  fully_shard(*in_place, *world);
  EXPECT_THAT(state_of(*in_place), is_named("itself"));
  EXPECT_THAT(state_of(*in_place->linear), is_named("itself")) << "a part of a unit";
  torch::nn::Sequential around(in_place);
  EXPECT_THAT(state_of(*around), is_named("0"));
  const auto plain = Plain();
  ZeroRedundancyOptimizer<SGD> zero(plain->parameters(), *world, torch::optim::SGDOptions(0.1));
  StateOf(*plain, zero, *world);
  EXPECT_THAT(RefusalOf([&] { StateOf(*sharded, zero, *world); }), is_named("itself"));
  EXPECT_EQ(StateOf(*sharded, optimizer).parameters.size(), plain->parameters().size());
}

TEST(FsdpNotWhole, InitParametersRefusesShards) {
  const auto init = [](torch::nn::Module& module) { return RefusalOf([&] { init_parameters(module, 1, LikeTorch); }); };
  const auto in_place = std::make_shared<Residual>();
  fully_shard(*in_place, *world);
  torch::nn::Sequential around(in_place, torch::nn::Linear(4, 4));
  EXPECT_THAT(init(*around), HasSubstr("init_parameters: module 0 is sharded"));
  EXPECT_THAT(init(*in_place->linear), HasSubstr("module itself is sharded"));
  const auto wrapped = Shard(*world);
  EXPECT_THAT(init(*wrapped->module()), HasSubstr("module itself is sharded"));
  EXPECT_EQ(init(*in_place), "accepted");
  EXPECT_EQ(init(*wrapped), "accepted");
}

}  // namespace
}  // namespace cohort::trainer
