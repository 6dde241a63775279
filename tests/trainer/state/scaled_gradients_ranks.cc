// Gradients that float16 holds only while they are scaled: 1e-8 is 0 there.
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/state/master_weights.h"
#include "tests/trainer/noisy_stack.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kTiny = 1e-8;
constexpr double kRate = 1e7;  // a step of 0.1
constexpr double kClip = 2.5e-7;
constexpr int kLayers = 4;  // so that most ranks own some

// A gradient of kTiny for each of its elements, whatever the input.
struct Tiny : torch::nn::Module {
  explicit Tiny(at::ScalarType type = torch::kHalf) {
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(register_parameter("weight" + std::to_string(i), torch::ones({3 + i}, type)));
    }
  }
  at::Tensor forward(const at::Tensor& factor) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& weight : weights) sum = sum + (weight.to(torch::kFloat) * factor.to(torch::kFloat)).sum();
    return sum * kTiny;
  }
  double norm() const {
    int64_t elements = 0;
    for (const at::Tensor& weight : weights) elements += weight.numel();
    return kTiny * std::sqrt(static_cast<double>(elements));
  }
  double Clipped() const { return kTiny * kClip / (norm() + 1e-6); }  // as PyTorch clips
  std::vector<at::Tensor> weights;
};

void ExpectAll(const std::vector<at::Tensor>& tensors, double expected, double rtol) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor wide = tensors[i].detach().to(torch::kFloat);
    EXPECT_TRUE(torch::allclose(wide, torch::full_like(wide, expected), rtol, 0)) << i << ": " << wide;
  }
}

std::vector<at::Tensor> GradientsOf(const Tiny& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : model.weights) gradients.push_back(weight.grad());
  return gradients;
}

class ScaledGradients : public testing::TestWithParam<bool> {
 protected:
  // MasterWeights, alone or split among the ranks.
  std::unique_ptr<torch::optim::Optimizer> Make(const Tiny& model) const {
    const SGDOptions options(kRate);
    if (!GetParam()) return std::make_unique<MasterWeights<SGD>>(model.parameters(), options);
    return std::make_unique<ZeroRedundancyOptimizer<MasterWeights<SGD>>>(model.parameters(), *world, options);
  }
};

TEST_P(ScaledGradients, StepUnscalesGradientsInTheCopies) {
  Tiny model;
  const auto optimizer = Make(model);
  GradScaler scaler({}, {world.get()});
  for (int step = 0; step < 2; ++step) {
    optimizer->zero_grad();
    scaler.scale(model.forward(torch::ones({}))).backward();
    const auto scaled = Copies(GradientsOf(model));
    EXPECT_TRUE(scaler.step(*optimizer));
    scaler.update();
    ExpectBits(GradientsOf(model), scaled);
  }
  ExpectAll(model.weights, 1 - 2 * kRate * kTiny, 1e-3);
}

// Looked at and clipped, as in any program.
TEST_P(ScaledGradients, GradientsAreFloat32BetweenUnscaleAndStep) {
  Tiny model;
  const auto optimizer = Make(model);
  GradScaler scaler({}, {world.get()});
  for (const bool infinite : {false, true, false}) {
    optimizer->zero_grad();
    scaler.scale(model.forward(torch::ones({}))).backward();
    if (infinite) model.weights[0].mutable_grad()[0] = std::numeric_limits<float>::infinity();
    scaler.unscale_(*optimizer);
    if (!infinite) {
      ExpectAll(GradientsOf(model), kTiny, 1e-3);
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(model.parameters(), kClip), model.norm(), 1e-3 * model.norm());
      ExpectAll(GradientsOf(model), model.Clipped(), 1e-3);
    }
    EXPECT_EQ(scaler.step(*optimizer), !infinite);
    scaler.update();
    for (const at::Tensor& gradient : GradientsOf(model)) EXPECT_EQ(gradient.scalar_type(), torch::kHalf);
  }
  ExpectAll(model.weights, 1 - 2 * kRate * model.Clipped(), 1e-3);
}
INSTANTIATE_TEST_SUITE_P(Split, ScaledGradients, testing::Bool());

TEST(ScaledGradients, ScaledGradientsWithoutCopiesAreRefusedAsByPyTorch) {
  Tiny model;
  SGD optimizer(model.parameters(), SGDOptions(0.5));
  GradScaler scaler;
  scaler.scale(model.forward(torch::ones({}))).backward();
  try {
    scaler.unscale_(optimizer);
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("unscale float16 gradients"));
  }
  EXPECT_THROW(scaler.step(optimizer), c10::Error);
  ExpectAll(model.weights, 1, 0);
  GradScaler sharded({.init_scale = 2}, {world.get()});  // as PyTorch's ShardedGradScaler
  sharded.scale(model.forward(torch::ones({}) / kTiny)).backward();
  EXPECT_TRUE(sharded.step(optimizer));
}

DeepSpeedConfig ClippingConfig(int stage, double clipping) {
  std::ostringstream json;
  json << R"({"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true, "loss_scale": 65536},
              "optimizer": {"type": "SGD", "params": {"lr": )"
       << kRate << R"(}}, "zero_optimization": {"stage": )" << stage << R"(}, "gradient_clipping": )" << clipping
       << "}";
  return ParseDeepSpeedConfig(json.str(), world->size());
}

// An engine's weights after a step.
void ExpectStep(int stage, double clipping, double gradient) {
  const auto model = std::make_shared<Tiny>(torch::kFloat);
  DeepSpeedEngine<Tiny> engine(model, ClippingConfig(stage, clipping), *world);
  engine.backward(engine.forward(torch::ones({})));
  engine.step();
  EXPECT_EQ(engine.skipped_steps(), 0);
  ExpectAll(model->parameters(), 1 - kRate * gradient, 1e-3);
}

TEST(ScaledGradients, ScaledGradientsReachDeepSpeedsOptimizer) {
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    ExpectStep(stage, 0, kTiny);
    ExpectStep(stage, 1, kTiny);
    ExpectStep(stage, kClip, Tiny().Clipped());
  }
}

}  // namespace
}  // namespace cohort::trainer
