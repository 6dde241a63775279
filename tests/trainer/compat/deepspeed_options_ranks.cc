// The keys of the configuration that change an optimizer's arithmetic, against a program that sets the same options.
#include <limits>
#include <memory>
#include <string>

#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/compat/deepspeed_schedule.h"
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

TEST(DeepSpeedOptions, OptimizersTakeTheirOptions) {
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

// A schedule moves the betas of the rank's own optimizer, whatever wraps it.
TEST(DeepSpeedOptions, ACycleMovesTheBetas) {
  const std::string cycle = R"("optimizer": {"type": "Adam", "params": {"lr": 0.1}}, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.05, "cycle_first_step_size": 3}})";
  auto expected = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(expected, *world);
  torch::optim::AdamW plain(expected->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0));
  const DeepSpeedConfig config = ConfigWith(cycle);
  for (int step = 0; step < kOptionSteps; ++step) {
    auto& options = static_cast<torch::optim::AdamWOptions&>(plain.param_groups()[0].options());
    options.lr(LearningRateAt(config, step));
    options.betas({BetasAt(config, step)->first, BetasAt(config, step)->second});
    plain.zero_grad();
    ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    plain.step();
  }
  ExpectTrains(cycle, expected);
}

// Their layout has no isfinite, and their rows are added up in bfloat16.
TEST(DeepSpeedOptions, Bfloat16TakesSparseGradients) {
  struct Words : torch::nn::Module {
    explicit Words(bool sparse) {
      torch::manual_seed(40);
      words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(23, 4).sparse(sparse)));
      linear = register_module("linear", torch::nn::Linear(4, 3));
    }
    at::Tensor forward(const at::Tensor& ids) { return linear(torch::tanh(words(ids).sum(1))); }
    torch::nn::Embedding words{nullptr};
    torch::nn::Linear linear{nullptr};
  };
  const std::string keys = R"("bf16": {"enabled": true}, "gradient_clipping": 0.5, "optimizer": {"type": "SGD",
      "params": {"lr": 0.1}}, "zero_optimization": {"stage": )";
  const auto ids = [](int step) {
    return torch::randint(0, 23, {6, 3}, at::detail::createCPUGenerator(500 + 10 * world->rank() + step), torch::kLong);
  };
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    std::vector<std::shared_ptr<Words>> trained;
    for (const bool sparse : {true, false}) {
      trained.push_back(std::make_shared<Words>(sparse));
      DeepSpeedEngine<Words> engine(trained.back(), ConfigWith(keys + std::to_string(stage) + "}"), *world);
      for (int step = 0; step < kOptionSteps; ++step) {
        engine.backward(engine.forward(ids(step)).to(torch::kFloat32).pow(2).mean());
        engine.step();
      }
      EXPECT_EQ(engine.skipped_steps(), 0);
      // A gradient that is not finite is found in rows, too.
      const double factor = world->rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
      engine.backward(engine.forward(ids(9)).to(torch::kFloat32).pow(2).mean() * factor);
      engine.step();
      EXPECT_EQ(engine.skipped_steps(), 1);
    }
    for (size_t i = 0; i < trained[0]->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(trained[0]->parameters()[i], trained[1]->parameters()[i], 2e-2, 2e-2)) << i;
    }
  }
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
