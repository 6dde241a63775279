// The keys of the configuration that change an optimizer's arithmetic, against a program that sets the same options.
#include <limits>
#include <memory>
#include <string>

#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "gtest/gtest.h"
#include "tests/trainer/ranks.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

constexpr int kOptionSteps = 5;

DeepSpeedConfig ConfigWith(const std::string& keys) {
  return ParseDeepSpeedConfig(R"({"train_micro_batch_size_per_gpu": 6, )" + keys + "}", world->size());
}

template <typename OptimizerClass, typename Options>
std::shared_ptr<Net> Expected(const Options& options) {
  auto net = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(net, *world);
  OptimizerClass optimizer(net->parameters(), options);
  for (int step = 0; step < kOptionSteps; ++step) {
    optimizer.zero_grad();
    ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
  return net;
}

void ExpectTrains(const std::string& optimizer, const std::shared_ptr<Net>& expected) {
  for (const int stage : {0, 1, 2}) {
    const auto net = std::make_shared<Net>();
    DeepSpeedEngine<Net> engine(
        net, ConfigWith(optimizer + R"(, "zero_optimization": {"stage": )" + std::to_string(stage) + "}"), *world);
    for (int step = 0; step < kOptionSteps; ++step) {
      engine.backward(engine.forward(InputOf(world->rank(), step)).pow(2).mean());
      engine.step();
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], expected->parameters()[i], 1e-4, 1e-6))
          << optimizer << ", stage " << stage << ", " << i;
    }
  }
}

TEST(DeepSpeedOptions, OptimizersTakeThem) {
  const auto nesterov = Expected<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
  const auto plain = Expected<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9));
  EXPECT_FALSE(torch::allclose(nesterov->parameters()[0], plain->parameters()[0], 1e-4, 1e-6));
  ExpectTrains(R"("optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}})", nesterov);
  ExpectTrains(R"("optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}})",
               Expected<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5)));
  ExpectTrains(R"("optimizer": {"type": "Adam", "params": {"lr": 0.02, "amsgrad": true, "adam_w_mode": false}})",
               Expected<torch::optim::Adam>(AdamOptions(0.02).amsgrad(true)));
}

// WarmupLR goes up to the rate of the optimizer, the program's too, unless the file has another.
TEST(DeepSpeedOptions, AWarmupEndsAtTheOptimizersRate) {
  const auto rate_after_warmup = [](const std::string& keys, const DeepSpeedOptimizer& optimizer) {
    DeepSpeedEngine<Net> engine(std::make_shared<Net>(), ConfigWith(keys), *world, optimizer);
    for (int step = 0; step < kOptionSteps; ++step) {
      engine.backward(engine.forward(InputOf(world->rank(), step)).pow(2).mean());
      engine.step();
    }
    return engine.get_lr();
  };
  const std::string warmup = R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3)";
  const std::string sgd = R"("optimizer": {"type": "SGD", "params": {"lr": 0.25}}, )";
  EXPECT_DOUBLE_EQ(rate_after_warmup(sgd + warmup + "}}", nullptr), 0.25);
  EXPECT_DOUBLE_EQ(rate_after_warmup(sgd + warmup + R"(, "warmup_max_lr": 0.5}})", nullptr), 0.5);
  EXPECT_DOUBLE_EQ(rate_after_warmup(warmup + "}}", ClientOptimizer<torch::optim::SGD>(SGDOptions(0.125))), 0.125);
}

TEST(DeepSpeedOptions, Bfloat16SkipsStepsWhoseGradientsAreNotFinite) {
  const std::string sgd = R"("optimizer": {"type": "SGD", "params": {"lr": 0.25}}, )";
  for (const bool checks : {true, false}) {
    const std::string more = checks ? "" : R"(, "check_grad_overflow": false)";
    const auto net = std::make_shared<Net>();
    DeepSpeedEngine<Net> engine(net, ConfigWith(sgd + R"("bf16": {"enabled": true)" + more + "}"), *world);
    const double factor = world->rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
    engine.backward(engine.forward(InputOf(world->rank(), 0)).to(torch::kFloat32).pow(2).mean() * factor);
    engine.step();
    EXPECT_EQ(engine.skipped_steps(), checks ? 1 : 0);
    EXPECT_EQ(at::isfinite(net->parameters()[0]).all().item<bool>(), checks);
  }
}

}  // namespace
}  // namespace cohort::trainer
