#include "cohort/trainer/parallel/pipeline/stage_passes.h"

#include <memory>

#include "cohort/trainer/parallel/pipeline/micro_batches.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using ::testing::ElementsAre;

TEST(StagePasses, AnOutputThatWasSentGivesItsMemoryBack) {
  const PipelineStage stage(1, std::make_shared<torch::nn::LinearImpl>(4, 4));
  StagePasses passes(stage);
  at::Tensor output = passes.Forward(0, torch::randn({2, 4}), true);
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(output.storage().unsafeGetStorageImpl()));
  EXPECT_FALSE(memory.expired());
  output.reset();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(passes.under_way(), 1u);
  EXPECT_EQ(passes.Backward(0, torch::ones({2, 4})).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_EQ(passes.under_way(), 0u);
}

TEST(StagePasses, TheFirstStageDoesAllInTheSecondPart) {
  auto linear = std::make_shared<torch::nn::LinearImpl>(4, 4);
  const PipelineStage stage(0, linear);
  StagePasses passes(stage);
  passes.Forward(3, torch::randn({2, 4}), false);
  EXPECT_FALSE(passes.InputGradient(3, torch::ones({2, 4})).defined());
  EXPECT_FALSE(linear->weight.grad().defined());
  passes.WeightGradient(3);
  EXPECT_TRUE(linear->weight.grad().defined());
  EXPECT_THROW(passes.WeightGradient(3), c10::Error);
}

TEST(StagePasses, AFrozenStageStillGivesAGradientBack) {
  const PipelineStage stage(1, std::make_shared<StageModule>(std::vector<NamedLayer>()),
                            [](const at::Tensor& x) { return torch::zeros_like(x).detach(); });
  StagePasses passes(stage);
  passes.Forward(0, torch::randn({2, 4}), true);
  EXPECT_TRUE(torch::equal(passes.InputGradient(0, torch::ones({2, 4})), torch::zeros({2, 4})));
  passes.WeightGradient(0);
  EXPECT_EQ(passes.under_way(), 0u);
}

TEST(MicroBatches, MicroBatchesAreEqualParts) {
  const auto parts = SplitMicroBatches(torch::arange(6), 3, "inputs");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(torch::equal(parts[1], torch::tensor({2, 3})));
  EXPECT_THROW(SplitMicroBatches(torch::arange(7), 3, "inputs"), c10::Error);
  EXPECT_THROW(SplitMicroBatches(at::Tensor(), 3, "inputs"), c10::Error);
}

TEST(MicroBatches, MicroBatchesWeighBySharesOfTheValidTargets) {
  const auto count = [](const at::Tensor& target) { return CountValidTargets(target); };
  EXPECT_THAT(LossWeights({torch::tensor({1, -100}), torch::tensor({2, 0}), torch::tensor({-100, 5})}, count),
              ElementsAre(0.25, 0.5, 0.25));
  EXPECT_THAT(LossWeights({torch::tensor({-100})}, count), ElementsAre(0));
  EXPECT_EQ(CountValidTargets(torch::randn({3, 2})), 3);
}

}  // namespace
}  // namespace cohort::trainer
