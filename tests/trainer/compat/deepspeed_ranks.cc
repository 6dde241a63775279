// DeepSpeedEngine against the same training by hand.
#include <memory>
#include <string>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;

constexpr int kMicroBatches = 2;
constexpr int kEngineSteps = 6;

DeepSpeedConfig Config(int stage, const std::string& more = "") {
  return ParseDeepSpeedConfig(
      R"({"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2, "gradient_clipping": 0.05,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1}},
          "zero_optimization": {"stage": )" +
          std::to_string(stage) + R"(, "reduce_bucket_size": 20})" + more + "}",
      world->size());
}

std::shared_ptr<Net> TrainedByHand() {
  auto net = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(net, *world);
  AdamW optimizer(net->parameters(), AdamWOptions(0.02).weight_decay(0.1));
  for (int step = 0; step < kEngineSteps; ++step) {
    optimizer.zero_grad();
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      ddp.set_sync(micro + 1 == kMicroBatches);
      const at::Tensor out = ddp.forward(InputOf(world->rank(), kMicroBatches * step + micro));
      (out.pow(2).mean() / kMicroBatches).backward();
    }
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05);
    optimizer.step();
  }
  return net;
}

template <typename Module>
void TrainEngine(DeepSpeedEngine<Module>& engine) {
  for (int micro = 0; micro < kMicroBatches * kEngineSteps; ++micro) {
    const at::Tensor loss = engine.forward(InputOf(world->rank(), micro)).to(torch::kFloat32).pow(2).mean();
    engine.backward(loss);
    engine.step();
  }
}

TEST(DeepSpeedEngine, TrainsAsTheSameProgramByHand) {
  const auto expected = TrainedByHand();
  for (const int stage : {0, 1, 2}) {
    auto net = std::make_shared<Net>();
    DeepSpeedEngine<Net> engine(net, Config(stage), *world);
    TrainEngine(engine);
    EXPECT_EQ(engine.global_steps(), kEngineSteps);
    EXPECT_EQ(engine.skipped_steps(), 0);
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], expected->parameters()[i], 1e-4, 1e-5))
          << "stage " << stage << ", " << i;
    }
  }
}

// Without ignore_unused_parameters in the file, which is on then.
TEST(DeepSpeedEngine, TrainsCheckpointedFunctions) {
  struct Saving : Net {
    at::Tensor forward(const at::Tensor& x) {
      return checkpoint([this](const at::Tensor& in) { return Net::forward(in); }, x);
    }
  };
  const auto expected = TrainedByHand();
  for (const int stage : {0, 1, 2}) {
    auto net = std::make_shared<Saving>();
    DeepSpeedEngine<Saving> engine(net, Config(stage), *world);
    TrainEngine(engine);
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], expected->parameters()[i], 1e-4, 1e-5))
          << "stage " << stage << ", " << i;
    }
  }
}

TEST(DeepSpeedEngine, TrainsInBFloat16) {
  const auto expected = TrainedByHand();
  auto net = std::make_shared<Net>();
  DeepSpeedEngine<Net> engine(net, Config(2, R"(, "bf16": {"enabled": true})"), *world);
  TrainEngine(engine);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_EQ(net->parameters()[i].scalar_type(), torch::kBFloat16);
    // If a gradient is nearly zero its sign may differ, and Adam steps by 0.02 all the same.
    const at::Tensor difference = net->parameters()[i].to(torch::kFloat32) - expected->parameters()[i];
    EXPECT_LT(difference.abs().mean().item<double>(), 0.03) << i;
  }
}

TEST(DeepSpeedEngine, LeavesIntegersAndFlagsAsTheyAre) {
  auto net = std::make_shared<Net>();
  const at::Tensor positions = net->register_buffer("positions", torch::arange(1000));
  const at::Tensor mask = net->register_buffer("mask", torch::ones({4}, torch::kBool));
  const at::Tensor mean = net->register_buffer("mean", torch::ones({4}));
  const DeepSpeedEngine<Net> engine(net, Config(1, R"(, "bf16": {"enabled": true})"), *world);
  EXPECT_TRUE(torch::equal(net->named_buffers()["positions"], torch::arange(1000)));
  EXPECT_EQ(net->named_buffers()["mask"].scalar_type(), torch::kBool);
  EXPECT_EQ(net->named_buffers()["mean"].scalar_type(), torch::kBFloat16);
}

// DeepSpeed has none of its own then either.
TEST(DeepSpeedEngine, RefusesAConfigurationWithoutAnOptimizer) {
  const auto net = std::make_shared<Net>();
  for (const char* more : {"", R"(, "zero_optimization": {"stage": 2})"}) {
    const auto config =
        ParseDeepSpeedConfig(R"({"train_micro_batch_size_per_gpu": 6)" + std::string(more) + "}", world->size());
    try {
      const DeepSpeedEngine<Net> engine(net, config, *world);
      ADD_FAILURE() << "trains with " << config.optimizer.type;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("names no optimizer"));
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(R"("optimizer": {"type")"));
    }
  }
}

TEST(DeepSpeedEngine, TakesAProgramsOwnOptimizer) {
  const torch::optim::RMSpropOptions options(0.01);
  for (const std::string stage : {"0", "1", "2"}) {
    const auto config = ParseDeepSpeedConfig(
        R"({"train_micro_batch_size_per_gpu": 6, "zero_optimization": {"stage": )" + stage + "}}", world->size());
    auto net = std::make_shared<Net>(), plain = std::make_shared<Net>();
    DeepSpeedEngine<Net> engine(net, config, *world, ClientOptimizer<torch::optim::RMSprop>(options));
    DistributedDataParallel<Net> ddp(plain, *world);
    torch::optim::RMSprop optimizer(plain->parameters(), options);
    EXPECT_EQ(engine.get_lr(), 0.01);
    for (int step = 0; step < 3; ++step) {
      engine.backward(engine.forward(InputOf(world->rank(), step)).pow(2).mean());
      engine.step();
      optimizer.zero_grad();
      ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
      optimizer.step();
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], plain->parameters()[i], 1e-4, 1e-5)) << stage << " " << i;
    }
    EXPECT_EQ(engine.global_steps(), 3);
  }
}

TEST(DeepSpeedEngine, SaysWhatToDoAboutFloat16OnTheCpu) {
  DeepSpeedEngine<Net> engine(std::make_shared<Net>(), Config(1, R"(, "fp16": {"enabled": true, "auto_cast": true})"),
                              *world);
  try {
    engine.backward(engine.forward(InputOf(0)).pow(2).mean());
  } catch (const c10::Error& error) {  // newer versions of libtorch compute it
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("enable bf16 instead"));
  }
}

// Matrices in float16 are for GPUs: a model without them.
struct Scale : torch::nn::Module {
  Scale() { weight = register_parameter("weight", torch::ones({4})); }
  at::Tensor forward(const at::Tensor& x) { return weight * x; }
  at::Tensor weight;
};

using DeepSpeedResume = Checkpoints;

// Overflows at first, a scale that grows again, a schedule of learning rates, micro batches: at each step.
TEST_F(DeepSpeedResume, AResumedRunEqualsTheUndisturbedOne) {
  constexpr int kAll = 20;
  for (const int stage : {0, 1, 2}) {
    const auto config = ParseDeepSpeedConfig(
        R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 15}},
            "zero_optimization": {"stage": )" +
            std::to_string(stage) +
            R"(}, "fp16": {"enabled": true, "auto_cast": true, "initial_scale_power": 19, "hysteresis": 2,
                           "loss_scale_window": 4}})",
        world->size());
    const auto train = [](DeepSpeedEngine<Scale>& engine, int from, int to) {
      for (int micro = 2 * from; micro < 2 * to; ++micro) {
        const at::Tensor x = torch::full({4}, 1.0 + 0.25 * (micro % 3));
        engine.backward(engine.forward(x).to(torch::kFloat32).pow(2).mean());
        engine.step();
      }
    };
    auto expected = std::make_shared<Scale>();
    DeepSpeedEngine<Scale> undisturbed(expected, config, *world);
    train(undisturbed, 0, kAll);
    EXPECT_GT(undisturbed.skipped_steps(), 1);
    for (const int until : {1, 5, 12}) {
      const std::string folder = At("stage" + std::to_string(stage) + "-" + std::to_string(until));
      {
        DeepSpeedEngine<Scale> first(std::make_shared<Scale>(), config, *world);
        train(first, 0, until);
        SaveTrainingState(*world, folder, first.training_state(), first.state_dict());
      }
      auto module = std::make_shared<Scale>();
      DeepSpeedEngine<Scale> second(module, config, *world);
      second.load_state_dict(LoadTrainingState(*world, folder, second.training_state()));
      EXPECT_EQ(second.global_steps(), until);
      train(second, until, kAll);
      EXPECT_TRUE(torch::equal(module->weight, expected->weight)) << "stage " << stage << ", after step " << until;
      EXPECT_EQ(second.global_steps(), undisturbed.global_steps());
      EXPECT_EQ(second.skipped_steps(), undisturbed.skipped_steps());
      EXPECT_EQ(second.loss_scale(), undisturbed.loss_scale());
      EXPECT_EQ(second.get_lr(), undisturbed.get_lr());
    }
  }
}

TEST(DeepSpeedEngine, RefusesStatesThatWouldLoseSomething) {
  DeepSpeedEngine<Net> engine(std::make_shared<Net>(), Config(1), *world);
  engine.backward(engine.forward(InputOf(0)).pow(2).mean());
  engine.step();
  EXPECT_THROW(static_cast<void>(engine.state_dict()), c10::Error) << "after one of two micro batches";
  engine.backward(engine.forward(InputOf(0)).pow(2).mean());
  engine.step();
  CheckpointValues state = engine.state_dict();
  engine.load_state_dict(state);
  state["deepspeed.skipped_steps"] = "2";
  EXPECT_THROW(engine.load_state_dict(state), c10::Error) << "more than there were";
  state.erase("deepspeed.skipped_steps");
  EXPECT_THROW(engine.load_state_dict(state), c10::Error);
}

// After one of two micro batches, whose gradients are no part of the batch that begins then.
TEST(DeepSpeedEngine, LoadsIntoTheMidstOfABatch) {
  const auto expected = TrainedByHand();
  for (const int stage : {0, 1, 2}) {
    auto net = std::make_shared<Net>();
    DeepSpeedEngine<Net> engine(net, Config(stage), *world);
    const CheckpointValues state = engine.state_dict();
    engine.backward(engine.forward(InputOf(world->rank(), 77)).pow(2).mean());
    engine.step();
    engine.load_state_dict(state);
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    TrainEngine(engine);
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], expected->parameters()[i], 1e-4, 1e-5))
          << "stage " << stage << ", " << i;
    }
  }
}

TEST(DeepSpeedEngine, GathersParametersByBucketsOfTheSizeThatIsGiven) {
  const auto buffer_bytes = [](const std::string& more) {
    const auto config = ParseDeepSpeedConfig(
        R"({"train_micro_batch_size_per_gpu": 6, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1)" +
            more + "}",
        world->size());
    DeepSpeedEngine<Net> engine(std::make_shared<Net>(), config, *world);
    return dynamic_cast<ZeroRedundancyOptimizerBase&>(engine.optimizer()).buffer_bytes();
  };
  EXPECT_LE(buffer_bytes(R"(, "allgather_bucket_size": 8})"), 2 * 8 * 4);
  EXPECT_LE(buffer_bytes(R"(, "allgather_bucket_size": 8}, "bf16": {"enabled": true})"), 2 * 8 * 2);
  EXPECT_GT(buffer_bytes("}"), 2 * 8 * 4);
}

TEST(DeepSpeedEngine, SkipsStepsWhoseGradientsOverflowInFloat16) {
  auto module = std::make_shared<Scale>();
  DeepSpeedEngine<Scale> engine(
      module,
      ParseDeepSpeedConfig(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1}},
                               "zero_optimization": {"stage": 1},
                               "fp16": {"enabled": true, "auto_cast": true, "hysteresis": 1}})",
                           world->size()),
      *world);
  const auto step = [&] {
    engine.backward(engine.forward(torch::full({4}, 2.0)).to(torch::kFloat32).sum());
    engine.step();
  };
  step();  // 2 * 65536 / ranks summed over the ranks: no float16
  EXPECT_EQ(engine.skipped_steps(), 1);
  EXPECT_EQ(engine.loss_scale(), 32768);
  EXPECT_TRUE(torch::equal(module->weight, torch::ones({4}, torch::kHalf)));
  while (engine.skipped_steps() == engine.global_steps()) step();
  EXPECT_LE(engine.loss_scale(), 32768);
  EXPECT_TRUE(torch::equal(module->weight, torch::full({4}, -1, torch::kHalf))) << "the gradient is 2";
}

}  // namespace
}  // namespace cohort::trainer
