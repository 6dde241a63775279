#include "cohort/trainer/parallel/pipeline/layer_cut.h"

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;

TEST(LayerCut, TheHeaviestStageIsAsLightAsCanBe) {
  EXPECT_THAT(CutEvenly({1, 1, 1, 1}, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(CutEvenly({5, 1, 1, 1, 1, 1}, 2), ElementsAre(0, 1, 6));
  EXPECT_THAT(CutEvenly({1, 1, 1, 9}, 3), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(CutEvenly({3, 3}, 1), ElementsAre(0, 2));
  EXPECT_THAT(CutEvenly({0, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
  EXPECT_THROW(CutEvenly({1, 1}, 3), c10::Error);
}

torch::nn::Sequential Model() {
  return torch::nn::Sequential(torch::nn::AnyModule(torch::nn::Linear(8, 8)), torch::nn::AnyModule(torch::nn::Tanh()),
                               torch::nn::AnyModule(torch::nn::Linear(8, 2)),
                               torch::nn::AnyModule(torch::nn::Linear(2, 2)));
}

TEST(LayerCut, LayersAreCutByNumberAndByParameters) {
  const std::vector<NamedLayer> layers = LayersOf(Model(), "body");
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_EQ(layers[2].name, "body.2");
  EXPECT_THAT(CutByNumber(layers, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(CutByParameters(layers, 2), ElementsAre(0, 1, 4));
}

struct Slow : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
    while (std::chrono::steady_clock::now() < end) {
    }
    return x * 1;
  }
};

TEST(LayerCut, CutByTimeLeavesGradientsAsTheyWere) {
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), Slow());
  model->parameters()[0].mutable_grad() = torch::ones({8, 8});
  EXPECT_THAT(CutByTime(LayersOf(model), 2, torch::randn({2, 8}), 2), ElementsAre(0, 3, 4));
  EXPECT_TRUE(torch::equal(model->parameters()[0].grad(), torch::ones({8, 8})));
  EXPECT_FALSE(model->parameters()[1].grad().defined());
}

struct Throws : torch::nn::Module {
  at::Tensor forward(const at::Tensor& /*x*/) { TORCH_CHECK(false, "no"); }
};

// Measuring is no training: statistics, random numbers and gradients are as before, also after an exception.
TEST(LayerCut, CutByTimeLeavesBuffersAndGeneratorsAsTheyWere) {
  for (const bool throws : {false, true}) {
    torch::nn::BatchNorm1d norm(8);
    torch::nn::Sequential model(torch::nn::Linear(8, 8), norm, torch::nn::Dropout(0.5), torch::nn::Linear(8, 8));
    if (throws) model->push_back(Throws());
    model->parameters()[0].mutable_grad() = torch::ones({8, 8});
    const at::Tensor input = torch::randn({4, 8});
    torch::manual_seed(3);
    if (throws) {
      EXPECT_THROW(CutByTime(LayersOf(model), 2, input), c10::Error);
    } else {
      const at::NoGradGuard no_grad;  // the backward pass counts all the same
      CutByTime(LayersOf(model), 2, input);
    }
    const at::Tensor drawn = torch::rand({3});
    torch::manual_seed(3);
    EXPECT_TRUE(torch::equal(drawn, torch::rand({3}))) << throws;
    EXPECT_TRUE(torch::equal(norm->running_mean, torch::zeros({8}))) << throws;
    EXPECT_TRUE(torch::equal(norm->running_var, torch::ones({8}))) << throws;
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0) << throws;
    EXPECT_TRUE(torch::equal(model->parameters()[0].grad(), torch::ones({8, 8}))) << throws;
    EXPECT_FALSE(model->parameters()[1].grad().defined()) << throws;
  }
}

}  // namespace
}  // namespace cohort::trainer
